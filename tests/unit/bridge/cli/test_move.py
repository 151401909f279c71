"""`duolog move`: a data directory becomes a stream that brokers share, and a stream a data directory of its own."""

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from duolog.bridge.core import Core
from duolog.delay.cancellations import TimerOutcome
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.errors import StoreError
from duolog.store.files import LOCK_PATH, RealFiles
from duolog.store.shared.copy_state import read_copy_state
from duolog.store.shared.wal.wal_object import WalKind, decode, encode, key_of
from tests.kit.clock import ManualClock
from tests.kit.damage import flip
from tests.kit.disk import CrashDisk
from tests.kit.loop import run as run_in_time
from tests.kit.object_store import SimulatedBucket
from tests.kit.shared_core import SharedCore
from tests.unit.bridge.cli.test_backup import publish
from tests.unit.bridge.cli.test_bucket_backup import without_pauses
from tests.unit.bridge.cli.test_log_repair import core_on, readable, segments
from tests.unit.bridge.cli.test_main import run
from tests.unit.bridge.data.test_far_timers import Bench
from tests.unit.bridge.publish_bench import NOW
from tests.unit.bridge.test_far_takeover import FarCore

__all__ = ["without_pauses"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog.store.shared.moving.to_store.PIECE_BYTES", 1500)
    monkeypatch.setattr("duolog.bridge.cli.data_directory.move.WATCH_MS", 1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the data directory of a stopped broker with 60 messages in several segments."""
    core = core_on(tmp_path / "data")
    publish(core, 0, 60)
    core.store.close(core.clock.now_ms())
    return tmp_path / "data"


def objects_in(prefix: Path) -> dict[str, bytes]:
    return {path.relative_to(prefix).as_posix(): path.read_bytes() for path in prefix.rglob("*") if path.is_file()}


def moved(data: Path, prefix: Path, capsys: Capture) -> SimulatedBucket:
    """Move a data directory into a prefix, and return a bucket with its objects."""
    status, out, err = run(f"move --data {data} --to file://{prefix} --json", capsys)
    assert (status, err) == (0, "")
    assert json.loads(out)["url"] == f"file://{prefix}"
    bucket = SimulatedBucket(1)
    bucket.objects |= objects_in(prefix)
    return bucket


async def owner(clock: ManualClock, bucket: SimulatedBucket) -> SharedCore:
    """Return a broker with an empty disk that owns the stream."""
    core = SharedCore(clock, bucket, "a")
    await core.join()
    await core.own()
    return core


async def stopped(core: SharedCore) -> None:
    """Stop an owner in order, but let nothing run that writes its local files."""
    await core.replica.end()
    core.kill()


def send(core: SharedCore, start: int, end: int) -> None:
    topic = core.topics.get("orders")
    assert topic is not None
    for number in range(start, end):
        now_ms = core.clock.now_ms()
        core.publisher.publish_messages(topic, 0, [Message("", b"%d" % number, b"", born_ms=now_ms)], now_ms)
    core.settle()


def numbers(start: int, end: int) -> dict[int, bytes]:
    return {offset: b"%d" % offset for offset in range(start, end)}


def test_a_moved_log_is_a_stream_that_a_broker_with_an_empty_disk_reads_and_continues(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    bucket = moved(data, tmp_path / "prefix", capsys)
    assert sum(key.startswith("seg/") for key in bucket.objects) > len(segments(data))
    clock = ManualClock()

    async def main() -> None:
        core = await owner(clock, bucket)
        assert readable(core) == numbers(0, 60)  # type: ignore[arg-type]
        send(core, 60, 70)
        await asyncio.sleep(1)
        other = SharedCore(clock, bucket, "b")
        await other.join()
        await stopped(core)
        await other.own()
        assert readable(other) == numbers(0, 70)  # type: ignore[arg-type]
        other.kill()

    run_in_time(main(), clock)


def test_the_moved_directory_is_a_copy_of_the_stream_that_owns_it_at_once(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    bucket = moved(data, tmp_path / "prefix", capsys)
    clock = ManualClock()

    async def main() -> None:
        disk = RealFiles(str(data))
        core = SharedCore(clock, bucket, "a", disk)  # type: ignore[arg-type]
        begun_mono_ms = clock.mono_ms()
        await core.join()
        assert core.replica.joined.won is not None
        await core.own()
        assert clock.mono_ms() - begun_mono_ms < 500, "it waits for nobody"
        assert readable(core) == numbers(0, 60)  # type: ignore[arg-type]
        send(core, 60, 61)
        await asyncio.sleep(1)
        await stopped(core)
        core.store.close_without_writing()

    run_in_time(main(), clock)
    state = read_copy_state(RealFiles(str(data)))
    assert state is not None
    assert state.tail.position > 0


@pytest.mark.slow
@pytest.mark.parametrize("is_ended", [True, False])
def test_a_stream_becomes_a_data_directory(
    data: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, *, is_ended: bool
) -> None:
    bucket = moved(data, tmp_path / "prefix", capsys)
    clock = ManualClock()

    async def main() -> None:
        core = await owner(clock, bucket)
        for number in range(60, 90):
            send(core, number, number + 1)
            await asyncio.sleep(0.2)
        await asyncio.sleep(1)
        if is_ended:
            await stopped(core)
        core.kill()

    run_in_time(main(), clock)
    for key, content in bucket.objects.items():
        path = tmp_path / "later" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.setattr("duolog.store.recovery.tail_writer.SEGMENT_BYTES", 4096)
    status, out, err = run(f"move --data {tmp_path / 'new'} --from file://{tmp_path / 'later'}", capsys)
    assert (status, bool(err)) == (0, not is_ended)
    assert "start the broker with --data" in out
    if not is_ended:
        assert "the last owner was not stopped in order" in err
    core = core_on(tmp_path / "new")
    assert readable(core) == numbers(0, 90)
    publish(core, 90, 91)
    assert readable(core) == numbers(0, 91)


@pytest.mark.parametrize("uploads", [True, False])
def test_after_a_move_from_an_owner_that_was_killed_lost_offsets_have_another_leader_epoch(
    data: Path, tmp_path: Path, capsys: Capture, *, uploads: bool
) -> None:
    bucket = moved(data, tmp_path / "prefix", capsys)
    clock = ManualClock()
    shown: list[int] = []

    async def main() -> None:
        core = await owner(clock, bucket)
        if uploads:
            await asyncio.sleep(1)
        core.objects.faults.is_cut = True
        send(core, 60, 70)
        topic = core.topics.get("orders")
        assert topic is not None
        assert topic.queues[0].visible_end == 70
        shown.append(topic.leader_epoch(0))
        core.kill()

    run_in_time(main(), clock)
    later = tmp_path / "later"
    for key, content in bucket.objects.items():
        (later / key).parent.mkdir(parents=True, exist_ok=True)
        (later / key).write_bytes(content)
    assert run(f"move --data {tmp_path / 'new'} --from file://{later}", capsys)[0] == 0
    core = core_on(tmp_path / "new")
    topic = core.topics.get("orders")
    assert topic is not None
    assert readable(core) == numbers(0, 60)
    assert topic.epoch_at(0, 60)[0] > shown[0]


def test_a_log_of_which_retention_has_removed_segments_goes_there_and_back(tmp_path: Path, capsys: Capture) -> None:
    core = core_on(tmp_path / "data")
    publish(core, 0, 60)
    core.store.checkpoint(0)
    core.settle()
    core.store.retention.trim(core.topic("orders").queues[0], 50, core.clock.now_ms())
    for _ in core.store.retention.dead_segments.find():
        pass
    core.store.checkpoint(0)
    core.settle()
    core.store.close(core.clock.now_ms())
    assert segments(tmp_path / "data")[0].name != f"{0:020}.log"
    bucket = moved(tmp_path / "data", tmp_path / "prefix", capsys)
    clock = ManualClock()

    async def main() -> None:
        shared = await owner(clock, bucket)
        assert readable(shared) == numbers(50, 60)  # type: ignore[arg-type]
        shared.kill()

    run_in_time(main(), clock)
    back = run(f"move --data {tmp_path / 'new'} --from file://{tmp_path / 'prefix'}", capsys)
    assert back[0] == 0, back
    assert readable(core_on(tmp_path / "new")) == numbers(50, 60)


# -- Delayed messages

DAY_MS = 86_400_000


def cancel(core: Core, timer_id: str) -> None:
    outcomes = []

    def decide(error: StoreError | None) -> None:
        assert error is None
        outcomes.append(core.delays.commands.cancel(timer_id, core.clock.now_ms()).outcome)

    core.delays.commands.load(timer_id, decide)
    assert outcomes == [TimerOutcome.CANCELLED]


@pytest.fixture
def delayed(tmp_path: Path) -> list[str]:
    """Make a data directory with the messages 0 to 5 in a sorted table; 0 is cancelled. Return the ids."""
    disk = CrashDisk()
    bench = Bench(disk)
    bench.core.topic("orders", 1)
    due_ms = bench.now_ms() + DAY_MS
    wanted = [{"topic": "orders", "value": str(number), "at_ms": due_ms + number} for number in range(6)]
    ids = [bench.call("_add", each)["id"] for each in wanted]
    bench.turn_until_idle()
    cancel(bench.core, ids[0])
    for _ in range(5):
        bench.turn_until_idle()
    (table,) = bench.tree.context.tables.current
    assert (table.entry.count, table.tombstones.total, len(bench.tree)) == (6, 1, 5)
    bench.core.store.close(bench.now_ms())
    for path, content in (disk.contents() | {"format": b"1\n"}).items():
        (tmp_path / "data" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / path).write_bytes(content)
    return ids


@pytest.mark.slow
def test_far_delayed_messages_go_there_and_back(delayed: list[str], tmp_path: Path, capsys: Capture) -> None:
    bucket = moved(tmp_path / "data", tmp_path / "prefix", capsys)
    clock = ManualClock(NOW)

    async def main() -> None:
        broker = FarCore(clock, bucket, "a")
        await asyncio.sleep(5)
        assert broker.is_serving
        assert len(broker.tree) == 5
        cancel(broker, delayed[1])
        await asyncio.sleep(15)
        assert (len(broker.tree), len(broker.tree.deletions)) == (4, 0)
        await broker.stop()

    run_in_time(main(), clock)
    for key, content in bucket.objects.items():
        path = tmp_path / "later" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    status, _, err = run(f"move --data {tmp_path / 'new'} --from file://{tmp_path / 'later'}", capsys)
    assert (status, err) == (0, "")
    bench = Bench(RealFiles(str(tmp_path / "new")), clock.now_ms())  # type: ignore[arg-type]
    assert len(bench.tree) == 4
    bench.core.clock.pass_ms(DAY_MS)
    bench.turn_until_idle()
    assert sorted(bench.bodies("orders")) == [b"2", b"3", b"4", b"5"]


def without_a_table(data: Path) -> str:
    (path,) = (data / "timers").glob("*.table")
    path.unlink()
    return f"{path.name}: named by the manifest, and not there"


def with_a_changed_table(data: Path) -> str:
    (path,) = (data / "timers").glob("*.table")
    flip(path, path.stat().st_size - 1, 1)
    return f"{path.name}: footer with CRC"


@pytest.mark.parametrize("change", [without_a_table, with_a_changed_table])
def test_a_damaged_table_is_named_and_nothing_is_moved(
    delayed: list[str], tmp_path: Path, change: Callable[[Path], str], capsys: Capture
) -> None:
    says = change(tmp_path / "data")
    status, out, err = run(f"move --data {tmp_path / 'data'} --to file://{tmp_path / 'prefix'}", capsys)
    assert (status, out) == (1, "")
    assert says in err
    assert objects_in(tmp_path / "prefix") == {}


def test_a_stream_without_a_part_of_a_table_becomes_no_directory(
    delayed: list[str], tmp_path: Path, capsys: Capture
) -> None:
    moved(tmp_path / "data", tmp_path / "prefix", capsys)
    (path, *_) = sorted((tmp_path / "prefix" / "timers").rglob("0*/0*"))
    path.unlink()
    status, out, err = run(f"move --data {tmp_path / 'new'} --from file://{tmp_path / 'prefix'}", capsys)
    assert (status, out) == (1, "")
    assert f"the object timers/{path.parent.name}/{path.name} is damaged" in err
    assert not [*tmp_path.glob("new*")]


# -- Interruptions


def test_an_interrupted_move_is_repeated(data: Path, tmp_path: Path, capsys: Capture) -> None:
    complete = tmp_path / "complete"
    moved(Path(shutil.copytree(data, tmp_path / "copy")), complete, capsys)
    prefix = tmp_path / "prefix"
    names = sorted(path.name for path in (complete / "seg").iterdir())
    (prefix / "seg").mkdir(parents=True)
    (prefix / "seg" / names[0]).write_bytes((complete / "seg" / names[0]).read_bytes())
    (prefix / "seg" / names[1]).write_bytes(b"another content")
    (prefix / "seg" / f"{0:020}-{8:020}").write_bytes(b"of an earlier attempt")
    (prefix / "nodes").mkdir()
    (prefix / "nodes/0000").write_bytes(b"of a broker that was refused")
    moved(data, prefix, capsys)
    assert sorted(path.name for path in (prefix / "seg").iterdir()) == names
    for name in names:
        assert (prefix / "seg" / name).read_bytes() == (complete / "seg" / name).read_bytes()


# -- What is refused


def with_a_stream(data: Path, prefix: Path, new: Path) -> str:
    (prefix / "stream").write_bytes(b"{}")
    return "has a stream already: use an empty prefix"


def with_another_object(data: Path, prefix: Path, new: Path) -> str:
    (prefix / "photo.jpg").write_bytes(b"x")
    return "is not empty: it has 'photo.jpg'"


def in_use(data: Path, prefix: Path, new: Path) -> str:
    RealFiles(str(data)).lock(LOCK_PATH)  # Held until the end of the process, or until the handle is reused.
    return "a broker is using the directory; stop it first"


def damaged(data: Path, prefix: Path, new: Path) -> str:
    flip(segments(data)[0], 100, 0x10)
    return "the log is damaged: log/00000000000000000000.log at position 48; `duolog log verify`"


def newer(data: Path, prefix: Path, new: Path) -> str:
    (data / "format").write_bytes(b"99\n")
    return "it has format 99, and this version of Duolog reads formats up to"


def a_copy(data: Path, prefix: Path, new: Path) -> str:
    (data / "shared").write_bytes(b"x")
    return "the data directory is a copy of a stream"


def no_data(data: Path, prefix: Path, new: Path) -> str:
    shutil.rmtree(data)
    return "not a data directory"


@pytest.mark.parametrize("prepare", [with_a_stream, with_another_object, in_use, damaged, newer, a_copy, no_data])
def test_a_move_into_a_store_that_cannot_be_done_changes_nothing(
    data: Path, tmp_path: Path, prepare: Callable[[Path, Path, Path], str], capsys: Capture
) -> None:
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    says = prepare(data, prefix, tmp_path / "new")
    before = objects_in(prefix), objects_in(data)
    status, out, err = run(f"move --data {data} --to file://{prefix}", capsys)
    assert (status, out) in ((1, ""), (2, ""))
    assert says in err
    assert (objects_in(prefix), objects_in(data)) == before


def test_a_refused_move_leaves_no_directory(data: Path, tmp_path: Path, capsys: Capture) -> None:
    damaged(data, tmp_path, tmp_path)
    assert run(f"move --data {data} --to file://{tmp_path}/prefix", capsys)[0] == 1
    assert run(f"move --data {tmp_path}/new --from file://{tmp_path}/prefix", capsys)[0] == 1
    assert not [*tmp_path.glob("prefix*"), *tmp_path.glob("new*")]


def without_a_stream(prefix: Path) -> str:
    shutil.rmtree(prefix)
    return "has no object 'stream', so it has no stream: correct the URL"


def with_a_newer_stream(prefix: Path) -> str:
    (prefix / "stream").write_bytes(b'{"format": 9, "stream": "00"}')
    return "the object stream has format 9"


def with_a_newer_manifest(prefix: Path) -> str:
    (path,) = (prefix / "manifest").iterdir()
    path.write_bytes(b"00000000" + path.read_bytes()[8:])
    return f"the object manifest/{path.name} is damaged: its CRC is wrong"


def with_a_changed_segment(prefix: Path) -> str:
    path = random.Random(1).choice(sorted((prefix / "seg").iterdir()))
    flip(path, 100, 1)
    return f"the object seg/{path.name} is damaged: its CRC is"


def with_a_truncated_segment(prefix: Path) -> str:
    path = sorted((prefix / "seg").iterdir())[0]
    path.write_bytes(path.read_bytes()[:-8])
    return f"the object seg/{path.name} is damaged: it does not exist, or is too short"


def without_a_slot(prefix: Path) -> str:
    (path,) = (prefix / "wal").iterdir()
    last = decode(path.read_bytes(), int(path.name)).header
    follower = last._replace(kind=WalKind.UNITS, sequence=last.sequence + 2)
    (prefix / key_of(follower.sequence)).write_bytes(encode(follower, [])[0])
    missing, there = key_of(last.sequence + 1), key_of(follower.sequence)
    return f"the object {missing} is damaged: it is missing, and {there} follows it"


@pytest.mark.parametrize(
    "change",
    [
        without_a_slot,
        without_a_stream,
        with_a_newer_stream,
        with_a_newer_manifest,
        with_a_changed_segment,
        with_a_truncated_segment,
    ],
)
def test_a_stream_that_cannot_be_moved_is_named_and_no_directory_is_made(
    data: Path, tmp_path: Path, change: Callable[[Path], str], capsys: Capture
) -> None:
    prefix = tmp_path / "prefix"
    moved(data, prefix, capsys)
    says = change(prefix)
    status, out, err = run(f"move --data {tmp_path / 'new'} --from file://{prefix}", capsys)
    assert (status, out) == (1, "")
    assert says in err
    assert not [*tmp_path.glob("new*")]


def test_a_directory_that_is_not_empty_is_not_replaced(data: Path, tmp_path: Path, capsys: Capture) -> None:
    moved(data, tmp_path / "prefix", capsys)
    status, _, err = run(f"move --data {data} --from file://{tmp_path / 'prefix'}", capsys)
    assert (status, err) == (1, f"duolog: nothing was moved: {data} is not empty\n")


def test_one_direction_is_chosen(tmp_path: Path, capsys: Capture) -> None:
    for options in ("", "--to file:///a --from file:///b"):
        status, _, err = run(f"move --data {tmp_path} {options}", capsys)
        assert (status, err) == (2, "duolog: expected either --to URL or --from URL\n")
