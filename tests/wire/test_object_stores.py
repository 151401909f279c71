"""Proves the object store with real ones, behind a proxy that makes requests fail.

They are moto's S3 server, versitygw, and Azurite, which is Microsoft's emulator of Azure Blob Storage. versitygw runs
as two gateways over one directory, so its creates race in two processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from duolog.store.objects.errors import ObjectStoreError, StoreRefused, StoreRetry, StoreUnknown
from duolog.store.objects.interface import Creation, ObjectStore
from duolog.store.objects.opening import open_objects
from duolog.store.objects.options import ObjectStoreOptions
from duolog.store.objects.self_test import check_creates
from tests.kit.environment import set_environment
from tests.kit.object_proxy import ObjectProxy, ProxyFaults
from tests.kit.object_servers import KEYS, ObjectServer, azurite, moto, versity

MIB = 1 << 20
BUCKET = "duolog"


@pytest.fixture(scope="module")
def moto_server() -> Iterator[ObjectServer]:
    with moto() as running:
        running.make_bucket(BUCKET)
        yield running


@pytest.fixture(scope="module")
def versity_server() -> Iterator[ObjectServer]:
    with versity() as running:
        running.make_bucket(BUCKET)
        yield running


@pytest.fixture(scope="module")
def azurite_server() -> Iterator[ObjectServer]:
    with azurite() as running:
        running.make_bucket(BUCKET)
        yield running


@pytest.fixture(params=["moto", "versity", "azurite"])
def server(request: pytest.FixtureRequest, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    found: ObjectServer = request.getfixturevalue(f"{request.param}_server")
    opened.scheme = found.scheme
    if found.scheme == "az":
        set_environment(monkeypatch, found.environment)
    return found


@pytest.fixture
def proxy(server: ObjectServer) -> Iterator[ObjectProxy]:
    with ObjectProxy(*server.endpoints, seed=11) as running:
        yield running


class Opener:
    """Opens object stores: S3 with the keys of a profile file, Azure with those of the environment."""

    scheme = "s3"  # That of the test's server.

    def __init__(self, folder: Path) -> None:
        self._keys = folder / "credentials"
        self.write_keys(*KEYS)

    def write_keys(self, access_key_id: str, secret_access_key: str) -> None:
        self._keys.write_text(
            f"[default]\naws_access_key_id = {access_key_id}\naws_secret_access_key = {secret_access_key}\n"
        )

    def new_url(self) -> str:
        return f"{self.scheme}://{BUCKET}/{uuid.uuid4().hex}"

    def __call__(self, endpoint: str, url: str = "", timeout_ms: int = 5_000) -> ObjectStore:
        url = url or self.new_url()
        options = ObjectStoreOptions(url, endpoint, "us-east-1", request_timeout_ms=timeout_ms)
        return open_objects(options, {"AWS_SHARED_CREDENTIALS_FILE": str(self._keys)})


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return Opener(tmp_path)


def test_the_parts_of_an_object_are_sent_in_one_request(server: ObjectServer, opened: Opener) -> None:
    written = bytearray(bytes(range(256)) * (9 * MIB // 256))
    parts = (b"head", *(memoryview(written)[at : at + MIB].toreadonly() for at in range(0, len(written), MIB)))

    async def main() -> None:
        objects = opened(server.endpoint)
        assert await objects.create("wal/1", parts) is Creation.CREATED
        assert await objects.get("wal/1", 10 * MIB) == b"head" + written

    asyncio.run(main())


def test_a_large_object_is_not_created_twice(server: ObjectServer, opened: Opener) -> None:
    """versitygw answers before it has read the content, and closes the connection, which may lose its answer."""

    async def main() -> None:
        objects = opened(server.endpoint)
        assert await objects.create("wal/1", b"first") is Creation.CREATED
        for _ in range(5):
            with contextlib.suppress(StoreUnknown):
                assert await objects.create("wal/1", bytes(9 * MIB)) is Creation.EXISTS
        assert await objects.get("wal/1", MIB) == b"first"

    asyncio.run(main())


def test_objects_are_created_once_read_listed_and_deleted(server: ObjectServer, opened: Opener) -> None:
    large = bytes(range(256)) * (24 * MIB // 256)

    async def main() -> None:
        objects = opened(server.endpoint)
        assert await objects.create("wal/2", large) is Creation.CREATED
        assert await objects.create("wal/2", b"other") is Creation.EXISTS
        assert await objects.get("wal/2", len(large)) == large
        with pytest.raises(StoreRefused, match="more than the 1000"):
            await objects.get("wal/2", 1000)
        assert await objects.get_range("wal/2", 5 * MIB, MIB) == large[5 * MIB : 6 * MIB]
        assert await objects.get_range("wal/2", len(large) - 3, 10) == large[-3:]
        assert await objects.get_range("wal/2", len(large), 10) == b""
        assert await objects.get_range("wal/2", len(large) + 3, 10) == b""
        assert (await objects.get("wal/3", 1), await objects.get_range("wal/3", 0, 1)) == (None, None)
        for key in ("wal/10", "wal/1", "walk/1"):
            await objects.create(key, b"x")
        assert [tuple(each) for each in await objects.list("wal/")] == [
            ("wal/1", 1),
            ("wal/10", 1),
            ("wal/2", 24 * MIB),
        ]
        assert [each.key for each in await objects.list("", "wal/10", limit=1)] == ["wal/2"]
        await objects.delete(["wal/2", "wal/missing", "wal/1"])
        assert [each.key for each in await objects.list("")] == ["wal/10", "walk/1"]

    asyncio.run(main())


@pytest.mark.parametrize("server", ["moto", "azurite"], indirect=True)
def test_lists_of_more_than_a_page_are_complete(server: ObjectServer, opened: Opener) -> None:
    async def main() -> None:
        objects = opened(server.endpoint)
        keys = [f"wal/{number:04}" for number in range(1_030)]
        for at in range(0, len(keys), 103):
            await asyncio.gather(*(objects.create(key, b"") for key in keys[at : at + 103]))
        assert [each.key for each in await objects.list("wal/", limit=2_000)] == keys
        assert [each.key for each in await objects.list("wal/", keys[20])] == keys[21:1_021]
        await objects.delete(keys)
        assert await objects.list("") == []

    asyncio.run(main())


def test_the_self_test_trusts_both_gateways_together(server: ObjectServer, proxy: ObjectProxy, opened: Opener) -> None:
    asyncio.run(check_creates(opened(proxy.endpoint), "run"))


def test_the_self_test_refuses_a_store_that_lies_about_create_if_absent(
    moto_server: ObjectServer, opened: Opener
) -> None:
    with ObjectProxy(moto_server.endpoint) as proxy:
        proxy.faults.ignores_conditions = True
        with pytest.raises(StoreRefused, match=r"two brokers could write at a time: use a store"):
            asyncio.run(check_creates(opened(proxy.endpoint), "run"))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("busy", "StoreRetry"),
        ("conflict", "StoreRetry"),
        ("lost_request", "StoreUnknown"),
        ("lost_answer", "StoreUnknown"),
        ("repeated", "exists"),
    ],
)
def test_a_key_has_one_creator_and_each_outcome_is_true_whatever_fails(
    proxy: ObjectProxy, opened: Opener, fault: str, expected: str
) -> None:
    """Two clients write slots: after CREATED a client has created the object, after StoreRetry nothing."""
    url = opened.new_url()
    reported: dict[str, Counter[str]] = {}

    async def write(name: str, objects: ObjectStore) -> None:
        for slot in range(40):
            try:
                outcome = (await objects.create(f"wal/{slot:02}", f"{name} {slot}".encode())).value
            except ObjectStoreError as error:
                outcome = type(error).__name__
            reported.setdefault(f"wal/{slot:02}", Counter())[f"{name} {outcome}"] += 1

    async def main() -> dict[str, bytes | None]:
        proxy.faults = ProxyFaults(**{fault: 0.3})
        await asyncio.gather(write("a", opened(proxy.endpoint, url)), write("b", opened(proxy.endpoint, url)))
        proxy.faults = ProxyFaults()
        objects = opened(proxy.endpoint, url)
        return {each.key: await objects.get(each.key, 100) for each in await objects.list("wal/")}

    stored = asyncio.run(main())
    for key, answers in reported.items():
        creators = {each.split()[0] for each in answers if each.endswith(" created")}
        content = stored.get(key)
        writer = None if content is None else content.decode().split()[0]
        assert creators <= {writer}, (key, content, answers)
        assert f"{writer} StoreRetry" not in answers, (key, content, answers)
    outcomes = {each.split()[1] for answers in reported.values() for each in answers}
    assert expected in outcomes


def test_a_store_that_gives_no_answer_leaves_a_create_unknown_and_a_read_to_be_repeated(
    proxy: ObjectProxy, opened: Opener
) -> None:
    proxy.faults.is_cut = True

    async def main() -> None:
        objects = opened(proxy.endpoint, timeout_ms=200)
        with pytest.raises(StoreUnknown, match=rf"create {opened.scheme}://duolog/.*/a: no answer"):
            await objects.create("a", b"")
        with pytest.raises(StoreRetry, match="no answer"):
            await objects.get("a", 1)
        with pytest.raises(StoreRetry, match="no answer"):
            await objects.list("")

    asyncio.run(main())


def test_a_store_that_is_not_there_changed_nothing(opened: Opener) -> None:
    async def main() -> None:
        with pytest.raises(StoreRetry, match="no connection"):
            await opened("http://127.0.0.1:1").create("a", b"")

    asyncio.run(main())


async def operations(objects: ObjectStore) -> AsyncIterator[str]:
    """Yield the text of the refusal of each operation."""
    for operation in (
        objects.create("a", b""),
        objects.get("a", 1),
        objects.get_range("a", 0, 1),
        objects.list("wal/"),
        objects.delete(["a"]),
    ):
        with pytest.raises(StoreRefused) as refused:
            await operation
        yield str(refused.value)


def test_a_missing_bucket_is_named_with_the_remedy(server: ObjectServer, opened: Opener) -> None:
    async def main() -> list[str]:
        return [each async for each in operations(opened(server.endpoint, f"{server.scheme}://no-such-bucket/prefix"))]

    for refusal in asyncio.run(main()):
        assert f"{server.scheme}://no-such-bucket/prefix/" in refusal
        assert "the bucket does not exist: create it" in refusal


@pytest.mark.parametrize("keys", [(KEYS[0], "wrong-secret"), ("nobody", KEYS[1])], ids=["secret", "key-id"])
def test_wrong_credentials_are_refused_without_repeating_them(
    versity_server: ObjectServer, opened: Opener, keys: tuple[str, str]
) -> None:
    opened.write_keys(*keys)

    async def main() -> list[str]:
        return [each async for each in operations(opened(versity_server.endpoint))]

    for refusal in asyncio.run(main()):
        assert "the credentials are wrong: correct AWS_ACCESS_KEY_ID" in refusal
        assert not any(each in refusal for each in (keys[1], "nobody", "Signature="))


@pytest.mark.parametrize("name", ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"])
def test_a_wrong_account_of_azure_is_refused_without_repeating_it(
    azurite_server: ObjectServer, opened: Opener, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Azurite answers AuthorizationFailure, and Azure itself AuthenticationFailed to a wrong key."""
    opened.scheme = azurite_server.scheme
    for each, value in (azurite_server.environment | {name: "d3Jvbmc0"}).items():
        monkeypatch.setenv(each, value)

    async def main() -> list[str]:
        return [each async for each in operations(opened(azurite_server.endpoint))]

    for refusal in asyncio.run(main()):
        assert "403 AuthorizationFailure: the store refuses the credentials or the address of this machine" in refusal
        assert not any(each in refusal for each in ("d3Jvbmc0", "SharedKey"))
