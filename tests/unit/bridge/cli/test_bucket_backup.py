"""A backup in a bucket: what was interrupted is repeated, each object is verified, and other prefixes are refused."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from duolog.bridge.cli.data_directory.backup import _plan_of
from duolog.store.backup.bucket import BucketBackup
from duolog.store.backup.manifest import MANIFEST, BackupFailed
from duolog.store.backup.sources import Sources
from duolog.store.errors import StoreError
from duolog.store.objects.errors import StoreRefused, StoreRetry
from duolog.store.objects.interface import LIST_LIMIT, Content, Creation, ObjectEntry
from duolog.store.objects.opening import open_objects
from duolog.store.objects.options import ObjectStoreOptions
from duolog.store.objects.remote import RemoteObjects
from tests.kit.core import ManualCore
from tests.kit.damage import flip
from tests.kit.http import HttpBench
from tests.unit.bridge.cli.test_backup import publish
from tests.unit.bridge.cli.test_log_repair import core_on, readable, readable_by_others
from tests.unit.bridge.cli.test_main import run

URL = "s3://bucket/monday"


def opened(url: str) -> RemoteObjects:
    return open_objects(ObjectStoreOptions(url))


class InterruptedObjects:
    """A FileStore whose `put` is refused after a number of objects, and is busy once before each of them."""

    def __init__(self, objects: RemoteObjects, puts_max: int) -> None:
        self.puts: list[str] = []
        self._objects, self._puts_max = objects, puts_max
        self._is_busy = False

    async def put(self, key: str, blocks: Iterable[bytes]) -> None:
        if len(self.puts) == self._puts_max:
            raise StoreRefused("the command was interrupted")
        self._is_busy = not self._is_busy
        if self._is_busy:
            next(iter(blocks), b"")
            raise StoreRetry("busy")
        self.puts.append(key)
        await self._objects.put(key, blocks)

    async def create(self, key: str, content: Content) -> Creation:
        return await self._objects.create(key, content)

    async def get(self, key: str, bytes_max: int) -> bytes | None:
        return await self._objects.get(key, bytes_max)

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        return await self._objects.get_range(key, start, length)

    async def list(self, prefix: str, start_after: str = "", limit: int = LIST_LIMIT) -> Sequence[ObjectEntry]:
        return await self._objects.list(prefix, start_after, limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._objects.delete(keys)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog.store.objects.transfers.RETRY_S", (0.0, 0.0))


def sources_of(core: ManualCore, data: Path) -> Sources:
    return Sources(_plan_of(HttpBench(core).ask("POST", "/api/backups")[1], data))


async def upload(sources: Sources, objects: RemoteObjects | InterruptedObjects) -> None:
    made = BucketBackup(objects, URL)
    await made.upload(sources, await made.left_over(), lambda _: None)
    sources.close()


async def restore(objects: RemoteObjects, data: Path) -> None:
    found = BucketBackup(objects, URL)
    await found.restore(await found.manifest(), str(data), lambda _: None)


@pytest.fixture
def core(tmp_path: Path) -> ManualCore:
    core = core_on(tmp_path / "data")
    publish(core, 0, 40)
    return core


@pytest.fixture
def bucket(core: ManualCore, tmp_path: Path) -> Path:
    """Return a directory that an object store has as its prefix, with a backup of 40 messages."""
    sources = sources_of(core, tmp_path / "data")
    publish(core, 40, 50)
    asyncio.run(upload(sources, opened(f"file://{tmp_path / 'bucket'}")))
    return tmp_path / "bucket"


@pytest.mark.parametrize("url", ["memory://", "file://{}/bucket"])
def test_a_restored_backup_has_what_was_there_when_it_began(core: ManualCore, tmp_path: Path, url: str) -> None:
    sources = sources_of(core, tmp_path / "data")
    publish(core, 40, 60)

    async def main() -> None:
        objects = opened(url.format(tmp_path))
        await upload(sources, objects)
        await restore(objects, tmp_path / "new")

    asyncio.run(main())
    assert readable_by_others(tmp_path / "new") == []
    restored = core_on(tmp_path / "new")
    assert readable(restored) == {offset: b"%d" % offset for offset in range(40)}


def test_the_objects_are_the_files_of_a_backup_in_a_directory(
    bucket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"restore {bucket} --data {tmp_path / 'as-files'}", capsys)[0] == 0
    status, out, _ = run(f"restore file://{bucket} --data {tmp_path / 'as-objects'} --json", capsys)
    assert (status, json.loads(out)["directory"]) == (0, str(tmp_path / "as-objects"))
    for path in sorted((tmp_path / "as-files").rglob("*.log")):
        assert path.read_bytes() == (tmp_path / "as-objects/log" / path.name).read_bytes()


def test_an_interrupted_upload_is_no_backup_and_is_repeated_without_what_is_there(
    core: ManualCore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path / 'bucket'}"

    async def interrupted(sources: Sources) -> list[str]:
        objects = InterruptedObjects(opened(url), 2)
        with pytest.raises(StoreRefused, match="was interrupted"):
            await upload(sources, objects)
        return objects.puts

    first = asyncio.run(interrupted(sources_of(core, tmp_path / "data")))
    status, _, err = run(f"restore {url} --data {tmp_path / 'new'}", capsys)
    assert (status, err) == (
        1,
        f"duolog: nothing was restored: {url} has no backup.json: it is no finished backup. If `duolog backup` was "
        "interrupted, run it again\n",
    )
    assert not (tmp_path / "new").exists()
    (tmp_path / "bucket" / first[0]).write_bytes(b"x" * (tmp_path / "bucket" / first[0]).stat().st_size)
    (tmp_path / "bucket/timers").mkdir()
    (tmp_path / "bucket/timers/0000000009.table").write_bytes(b"of the first attempt alone")
    publish(core, 40, 60)

    async def again(sources: Sources) -> list[str]:
        objects = InterruptedObjects(opened(url), 100)
        await upload(sources, objects)
        return objects.puts

    second = asyncio.run(again(sources_of(core, tmp_path / "data")))
    assert first[0] in second, "an object with other content is replaced"
    assert first[1] not in second, "an object with the same content is kept"
    assert not (tmp_path / "bucket/timers").exists()
    assert run(f"restore {url} --data {tmp_path / 'new'}", capsys)[0] == 0
    assert len(readable(core_on(tmp_path / "new"))) == 60


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (MANIFEST, "has a finished backup: use another prefix for each backup"),
        ("stream", "has 'stream', which is no part of a backup: use a prefix of its own"),
        ("wal/00000000000000000000", "has 'wal/00000000000000000000', which is no part of a backup"),
    ],
)
def test_a_prefix_with_something_else_is_refused(tmp_path: Path, key: str, says: str) -> None:
    async def main() -> None:
        objects = opened("memory://")
        await objects.create(key, b"there")
        with pytest.raises(BackupFailed, match=says):
            await BucketBackup(objects, URL).left_over()

    asyncio.run(main())


def test_a_backup_that_was_finished_meanwhile_is_not_replaced(core: ManualCore, tmp_path: Path) -> None:
    other = sources_of(core, tmp_path / "data")
    publish(core, 40, 41)
    sources = sources_of(core, tmp_path / "data")

    async def main() -> None:
        objects = opened("memory://")
        one = BucketBackup(objects, URL)
        left_over = await one.left_over()
        await upload(sources, objects)
        with pytest.raises(BackupFailed, match="another backup was written to s3://bucket/monday at the same time"):
            await one.upload(other, left_over, lambda _: None)
        other.close()

    asyncio.run(main())


# -- Damage


def some_segment(bucket: Path) -> Path:
    return sorted((bucket / "log").glob("*.log"))[1]


def flip_a_bit(bucket: Path) -> None:
    flip(some_segment(bucket), 100, 0x10)


def truncate(bucket: Path) -> None:
    some_segment(bucket).write_bytes(some_segment(bucket).read_bytes()[:-8])


def remove(bucket: Path) -> None:
    some_segment(bucket).unlink()


def newer_format(bucket: Path) -> None:
    content = json.loads((bucket / MANIFEST).read_text())
    (bucket / MANIFEST).write_text(json.dumps(content | {"format": 2}))


def newer_data(bucket: Path) -> None:
    content = json.loads((bucket / MANIFEST).read_text())
    (bucket / MANIFEST).write_text(json.dumps(content | {"data_format": 99}))


def empty(bucket: Path) -> None:
    shutil.rmtree(bucket)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (flip_a_bit, ".log is damaged: its CRC-32C is 0x"),
        (truncate, "were expected"),
        (remove, ".log is missing, or empty: restore another backup"),
        (newer_format, "backup.json has format 2; this version knows 1: restore it with the newer version"),
        (newer_data, "it has format 99, and this version of Duolog reads formats up to"),
        (empty, "has no backup.json: it is no finished backup"),
    ],
)
def test_a_damaged_backup_is_not_restored(
    bucket: Path, damage: Callable[[Path], None], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(bucket)
    status, out, err = run(f"restore file://{bucket} --data {tmp_path / 'new'}", capsys)
    assert (status, out) == (1, "")
    assert err.startswith(f"duolog: nothing was restored: file://{bucket}")
    assert says in err
    assert not [*tmp_path.glob("new*")]


def test_a_damaged_log_is_not_copied(core: ManualCore, tmp_path: Path) -> None:
    flip(some_segment(tmp_path / "data"), 100, 0x10)

    sources = sources_of(core, tmp_path / "data")

    async def main() -> None:
        objects = opened("memory://")
        with pytest.raises(StoreError, match="the log is damaged: log/"):
            await upload(sources, objects)
        assert await objects.list("") == []

    asyncio.run(main())


def test_a_wrong_url_or_setting_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(f"restore ftp://bucket --data {tmp_path / 'new'}", capsys)
    assert status == 2
    assert "'ftp://bucket' is no URL of an object store: use s3://bucket/prefix" in err
    status, _, err = run(f"restore s3://bucket --data {tmp_path / 'new'} --set shared.endpiont=x", capsys)
    assert status == 2
    assert "endpiont" in err


def test_url_with_one_slash_is_no_directory(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run("backup s3:/bucket/monday", capsys)
    assert (status, out) == (2, "")
    assert "s3:/bucket/monday: a URL has two slashes after the colon" in err
