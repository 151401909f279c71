"""Object stores on Google Cloud Storage and Azure Blob Storage: `obstore`'s clients, and small stand-ins for the APIs.

No account is needed; what the real services do beyond the stand-ins is not proved here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from duolog.store.objects.errors import StoreRefused, StoreRetry
from duolog.store.objects.interface import Creation
from duolog.store.objects.opening import open_objects
from duolog.store.objects.options import ObjectStoreOptions
from duolog.store.objects.remote import RemoteObjects
from duolog.store.objects.self_test import check_creates
from tests.kit.broker import Broker
from tests.kit.cloud_servers import BUCKET, CloudServer, FakeAzure, FakeGoogle, refusal
from tests.kit.environment import set_environment
from tests.wire.clients.shared_pair import wait_for_role
from tests.wire.test_shared import Writer, read_all

pytestmark = pytest.mark.usefixtures("duolog_only")

SERVERS = {"gs": FakeGoogle, "az": FakeAzure}


@pytest.fixture(params=SERVERS)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(scheme: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudServer]:
    with SERVERS[scheme]() as running:
        set_environment(monkeypatch, running.environment)
        yield running


@pytest.fixture
def objects(scheme: str, server: CloudServer) -> RemoteObjects:
    return open_objects(ObjectStoreOptions(f"{scheme}://{BUCKET}/prefix", server.endpoint))


def test_objects_are_created_once_read_listed_and_deleted(server: CloudServer, objects: RemoteObjects) -> None:
    async def main() -> None:
        assert await objects.create("wal/2", (b"0123", b"456789")) is Creation.CREATED
        assert await objects.create("wal/2", b"other") is Creation.EXISTS
        assert server.objects == {"prefix/wal/2": b"0123456789"}
        assert await objects.get("wal/2", 10) == b"0123456789"
        with pytest.raises(StoreRefused, match=r"wal/2.*more than the 9"):
            await objects.get("wal/2", 9)
        assert await objects.get_range("wal/2", 3, 4) == b"3456"
        assert await objects.get_range("wal/2", 8, 10) == b"89"
        assert await objects.get_range("wal/2", 10, 1) == b""
        assert (await objects.get("wal/3", 1), await objects.get_range("wal/3", 0, 1)) == (None, None)
        for key in ("wal/10", "wal/1", "walk/1", "wal/3", "wal/4"):
            await objects.create(key, b"x")
        assert [tuple(each) for each in await objects.list("wal/")] == [
            ("wal/1", 1), ("wal/10", 1), ("wal/2", 10), ("wal/3", 1), ("wal/4", 1),
        ]  # fmt: skip
        assert [each.key for each in await objects.list("wal/", "wal/10")] == ["wal/2", "wal/3", "wal/4"]
        assert [each.key for each in await objects.list("", "wal/10", limit=1)] == ["wal/2"]
        await objects.delete(["wal/2"])
        await objects.delete(["wal/1", "wal/missing", "wal/3"])
        await objects.delete(["wal/missing"])
        assert [each.key for each in await objects.list("")] == ["wal/10", "wal/4", "walk/1"]
        await objects.put("walk/1", [b"in its ", b"place"])  # Of a backup.
        assert await objects.get("walk/1", 100) == b"in its place"
        await check_creates(objects, "run")
        assert len(server.objects) == 3

    asyncio.run(main())


def test_refusals_name_the_object_and_the_remedy(server: CloudServer, scheme: str, objects: RemoteObjects) -> None:
    missing = {"gs": "NoSuchBucket", "az": "ContainerNotFound"}[scheme]

    async def main() -> None:
        for status, code, expected, text in (
            (404, missing, StoreRefused, "the bucket does not exist: create it"),
            (403, "AuthenticationFailed", StoreRefused, "the credentials are wrong"),
            (503, "ServerBusy", StoreRetry, "tried again"),
        ):
            server.refusal = refusal(status, code)
            for request in (
                objects.create("a", b""), objects.get("a", 1), objects.get_range("a", 0, 1), objects.list("a/"),
                objects.delete(["a", "b"]),
            ):  # fmt: skip
                with pytest.raises(expected, match=rf"{scheme}://{BUCKET}/prefix/a.*{text}"):
                    await request

    asyncio.run(main())


def test_azure_deletes_in_batches_and_each_object_that_was_not_deleted_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_environment(monkeypatch, FakeAzure.environment)

    async def main(server: FakeAzure) -> None:
        objects = open_objects(ObjectStoreOptions(f"az://{BUCKET}/prefix", server.endpoint))
        keys = [f"wal/{number:03}" for number in range(300)]
        await asyncio.gather(*(objects.create(key, b"") for key in keys))
        await objects.delete(keys)
        assert not server.objects
        assert server.seen["POST", 202] == 2  # At most 256 in one batch.
        for key in keys[:3]:
            await objects.create(key, b"")
        server.kept = {f"prefix/{keys[1]}"}
        with pytest.raises(StoreRetry, match=keys[1]):
            await objects.delete(["wal/missing", *keys[:3]])
        server.kept = set()
        await objects.delete(keys[:3])
        assert not server.objects

    with FakeAzure() as server:
        asyncio.run(main(server))


def test_lists_of_azure_go_on_after_a_key_also_where_the_service_does_not_know_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_environment(monkeypatch, FakeAzure.environment)

    async def main(server: FakeAzure) -> None:
        server.has_start_from = False
        objects = open_objects(ObjectStoreOptions(f"az://{BUCKET}/prefix", server.endpoint))
        keys = [f"wal/{number:02}" for number in range(10)]
        await asyncio.gather(*(objects.create(key, b"") for key in keys))
        assert [each.key for each in await objects.list("wal/", keys[4], limit=3)] == keys[5:8]
        assert [each.key for each in await objects.list("wal/", keys[7], limit=3)] == keys[8:]

    with FakeAzure() as server:
        asyncio.run(main(server))


def test_a_broker_with_an_empty_disk_reads_the_log(tmp_path: Path, server: CloudServer, scheme: str) -> None:
    settings = {
        "shared.url": f"{scheme}://{BUCKET}/prefix", "shared.endpoint": server.endpoint, "store.flush": "shared",
    }  # fmt: skip
    first, second = Broker(tmp_path / "a", settings), Broker(tmp_path / "b", settings)
    try:
        first.start()
        wait_for_role(first, "owner")
        writer = Writer(first.kafka, "orders")
        writer.write(*(f"value {number}" for number in range(500)))
        first.kill()
        second.start()
        wait_for_role(second, "owner")
        assert sorted(read_all(second.kafka, "orders", 500)) == sorted(writer.acknowledged)
        assert len(writer.acknowledged) == 500
    finally:
        first.kill()
        second.kill()
