"""Files as objects: pieces are created once, a download is whole or nothing, and what is not needed is deleted."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from duolog.store.files import read_whole, write_new
from duolog.store.shared.files.named_files import NamedFiles
from duolog.store.shared.requests import Requests
from duolog.store.shared.wal.wal_object import DamagedObject
from tests.kit.clock import ManualClock
from tests.kit.disk import CrashDisk
from tests.kit.loop import run
from tests.kit.object_store import SimulatedBucket

CONTENT = bytes(range(250))
PATH, SIZE = "timers/7.table", len(CONTENT)
KEYS = [f"{PATH}/{start:020}" for start in (0, 100, 200)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog.store.shared.files.named_files.PIECE_BYTES", 100)


class Side:
    """One broker's data directory with the files of the stream."""

    def __init__(self, bucket: SimulatedBucket, name: str) -> None:
        self.disk, self.objects = CrashDisk(), bucket.client(name)
        self.disk.make_directory("timers")
        self.requests = Requests(self.objects, 3_000, lambda event: None)
        self.files = NamedFiles(self.requests, self.disk, name)


def check(main: Callable[[SimulatedBucket, Side, Side], Coroutine[object, object, None]]) -> None:
    bucket = SimulatedBucket(1)
    first, second = Side(bucket, "a"), Side(bucket, "b")
    write_new(first.disk, PATH, CONTENT)
    run(main(bucket, first, second), ManualClock())


def test_an_uploaded_file_is_downloaded_and_deleted() -> None:
    async def main(bucket: SimulatedBucket, first: Side, second: Side) -> None:
        first.objects.faults.lost_answer = first.objects.faults.repeated = first.objects.faults.busy = 0.3
        await first.files.upload(PATH, SIZE)
        assert sorted(bucket.objects) == KEYS
        assert await second.files.download(PATH, SIZE) is None
        assert read_whole(second.disk, PATH) == CONTENT
        assert second.disk.paths() == [PATH]
        await first.files.delete([(PATH, SIZE)])
        assert not bucket.objects

    check(main)


def test_pieces_of_a_file_are_read_ahead() -> None:
    """A takeover may wait for a file: three pieces take hardly longer than one."""

    async def main(bucket: SimulatedBucket, first: Side, second: Side) -> None:
        await first.files.upload(PATH, SIZE)
        second.objects.faults.latency_ms = (900, 900)
        begun_s = asyncio.get_running_loop().time()
        assert await second.files.download(PATH, SIZE) is None
        assert asyncio.get_running_loop().time() - begun_s < 1.0

    check(main)


def test_a_file_with_a_missing_or_truncated_piece_is_not_downloaded() -> None:
    async def main(bucket: SimulatedBucket, first: Side, second: Side) -> None:
        await first.files.upload(PATH, SIZE)
        for left in (None, b"", CONTENT[100:199]):
            if left is None:
                del bucket.objects[KEYS[1]]
            else:
                bucket.objects[KEYS[1]] = left
            missing = await second.files.download(PATH, SIZE)
            assert missing is not None
            assert missing.key == KEYS[1]
            assert PATH not in second.disk.paths()
        second.files.remove_partial("timers")
        assert second.disk.paths() == []

    check(main)


def test_an_object_with_another_content_is_reported() -> None:
    async def main(bucket: SimulatedBucket, first: Side, second: Side) -> None:
        bucket.objects[KEYS[2]] = b"of somebody else"
        with pytest.raises(DamagedObject, match=KEYS[2]):
            await first.files.upload(PATH, SIZE)

    check(main)


def test_an_interrupted_download_leaves_no_file_with_the_name() -> None:
    async def main(bucket: SimulatedBucket, first: Side, second: Side) -> None:
        await first.files.upload(PATH, SIZE)
        second.objects.faults.latency_ms = (20, 20)
        download = asyncio.create_task(second.files.download(PATH, SIZE))
        await asyncio.sleep(0.012)
        download.cancel()
        await asyncio.wait([download])
        assert second.disk.paths() == ["timers/download-b"]
        assert await second.files.download(PATH, SIZE) is None
        assert second.disk.paths() == [PATH]

    check(main)


def test_files_that_are_not_needed_are_deleted() -> None:
    async def main(bucket: SimulatedBucket, first: Side, second: Side) -> None:
        bucket.objects |= {f"timers/{number}.table/{0:020}": b"" for number in range(2_500)}
        bucket.objects["other/1"] = b""
        await first.files.delete_others("timers", lambda path: path in ("timers/3.table", "timers/2400.table"))
        assert sorted(bucket.objects) == ["other/1", f"timers/2400.table/{0:020}", f"timers/3.table/{0:020}"]

    check(main)
