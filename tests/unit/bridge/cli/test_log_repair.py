"""`duolog log repair`: what was not damaged keeps its offsets, and clients of both protocols read past the rest.

The data directory has several segments with messages of both client protocols. Each case damages it on purpose.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duolog.protocol.kafka import record_batch, record_reader
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.errors import Corruption
from duolog.store.files import LOCK_PATH, RealFiles
from duolog.store.log.format import UNIT_HEADER_SIZE
from duolog.store.options import StoreOptions
from duolog.store.recovery.damage import Verification
from tests.kit.core import ManualCore
from tests.kit.damage import flip
from tests.kit.rows import first_in_unit
from tests.unit.bridge.batches import batch
from tests.unit.bridge.cli.test_main import run

SMALL = StoreOptions(segment_bytes=4096, reserve_bytes=512)
MESSAGES = 60
Damage = Callable[[Path], None]


def core_on(data: Path) -> ManualCore:
    return ManualCore(disk=RealFiles(str(data)), store=SMALL)


@pytest.fixture(scope="module")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("written") / "data"
    core = core_on(data)
    topic = core.topic("orders", queues=1)
    for offset in range(0, MESSAGES, 3):
        core.publish(topic, b"%d" % offset)
        values = [b"%d" % (offset + 1), b"%d" % (offset + 2)]
        core.publisher.publish_batch(topic, 0, batch(values), core.clock.now_ms())
        core.settle()
    core.store.close(core.clock.now_ms())
    return data


@pytest.fixture
def data(_written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_written, tmp_path / "data"))


def segments(data: Path) -> list[Path]:
    return sorted((data / "log").glob("*.log"))


def repaired(data: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    status, out, err = run(f"log repair --data {data} --json", capsys)
    assert (status, err) == (0, "")
    assert Verification(RealFiles(str(data)), is_served=False).run().is_intact
    assert readable_by_others(data) == []
    return dict(json.loads(out))


def readable_by_others(directory: Path) -> list[Path]:
    return [path for path in (directory, *directory.rglob("*")) if path.stat().st_mode & 0o077]


def readable(core: ManualCore) -> dict[int, bytes]:
    """Return the values by offset that Kafka clients read; RocketMQ clients must read the same."""
    topic = core.topics.get("orders")
    assert topic is not None
    queue = topic.queues[0]
    kafka: dict[int, bytes] = {}
    offset = queue.start_offset
    while offset < queue.visible_end:
        for buffer in core.reader.read_for_kafka(queue, topic, offset, 1 << 20, queue.visible_end):
            header = record_batch.read_header(buffer)
            if not header.is_control:
                kafka |= {record.offset: bytes(record.value) for record in record_reader.records(buffer, 1 << 20)}
            assert header.last_offset + 1 > offset
            offset = header.last_offset + 1
    rocketmq: dict[int, bytes] = {}
    offset = queue.start_offset
    while offset < queue.visible_end:
        found = core.reader.read_for_rocketmq(queue, topic, offset, 32, 1 << 20, queue.visible_end)
        for buffer in found.buffers:
            each = rocketmq_message.decode(buffer)
            rocketmq[each.queue_offset] = bytes(each.body)
        assert found.next_offset > offset
        offset = found.next_offset
    assert rocketmq == kafka
    return kafka


def lost_offsets(report: dict[str, Any]) -> set[int]:
    return {offset for row in report["lost_offsets"] for offset in range(row["start"], row["end"])}


def check(data: Path, report: dict[str, Any]) -> None:
    """Compare what clients read with the report: all other offsets are there, and new messages come behind them."""
    core = core_on(data)
    found = readable(core)
    assert found == {offset: b"%d" % offset for offset in range(MESSAGES) if offset not in lost_offsets(report)}
    core.publish(core.topic("orders"), b"new")
    assert readable(core) == found | {MESSAGES: b"new"}
    core.store.close(core.clock.now_ms())


def flip_in_the_middle(data: Path) -> None:
    flip(segments(data)[1], UNIT_HEADER_SIZE + 60, 0x10)


def truncate(data: Path) -> None:
    path = segments(data)[1]
    path.write_bytes(path.read_bytes()[:2000])


def remove_one(data: Path) -> None:
    segments(data)[2].unlink()


def remove_the_newest(data: Path) -> None:
    segments(data)[-1].unlink()


@pytest.mark.parametrize("damage", [flip_in_the_middle, truncate, remove_one, remove_the_newest])
def test_what_was_not_damaged_keeps_its_offsets(data: Path, damage: Damage, capsys: pytest.CaptureFixture[str]) -> None:
    damage(data)
    report = repaired(data, capsys)
    assert report["lost_offsets"][0]["topic"] == "orders"
    assert report["lost_state"] == []
    check(data, report)
    assert (data / "repair-1" / "checkpoint").is_file()


@pytest.mark.parametrize("seed", first_in_unit(range(25), 8))
def test_repair_after_any_damage(data: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    choose = random.Random(seed)
    for _ in range(choose.randrange(1, 4)):
        path = choose.choice(segments(data))
        size = path.stat().st_size
        match choose.choice(("flip", "flip", "truncate", "remove")):
            case "flip" if size:
                flip(path, choose.randrange(size), 0x10)
            case "truncate" if size:
                path.write_bytes(path.read_bytes()[: choose.randrange(size)])
            case "remove" if path != segments(data)[0]:
                path.unlink()
    check(data, repaired(data, capsys))


def test_without_a_checkpoint_the_state_comes_from_the_log(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "checkpoint").unlink()
    flip_in_the_middle(data)
    with pytest.raises(Corruption):
        core_on(data)
    report = repaired(data, capsys)
    assert lost_offsets(report)
    assert report["lost_state"] == report["damage"]
    check(data, report)


def test_old_files_are_kept_and_a_dry_run_changes_nothing(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_in_the_middle(data)
    damaged, content = segments(data)[1], segments(data)[1].read_bytes()
    status, out, _ = run(f"log repair --data {data} --dry-run", capsys)
    assert status == 1
    assert "left out: offsets" in out
    assert "Nothing was changed." in out
    assert damaged.read_bytes() == content
    assert not (data / "repair-1").exists()
    repaired(data, capsys)
    assert (data / "repair-1" / "log" / damaged.name).read_bytes() == content
    assert damaged.read_bytes() != content


def test_a_delayed_message_that_was_damaged_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    core = core_on(data)
    topic = core.topic("orders", queues=1)
    core.publish(topic, b"before")
    at = core.store.next_position
    late = Message("", b"late", b"TIMER_DELAY_SEC\x015\x02", born_ms=core.clock.now_ms())
    core.publisher.publish_messages(topic, 0, [late], core.clock.now_ms())
    core.publish(topic, b"after")
    core.store.close(core.clock.now_ms())
    (segment,) = segments(data)
    flip(segment, at + UNIT_HEADER_SIZE + 60, 0x10)
    assert repaired(data, capsys)["damage"]
    core = core_on(data)
    core.clock.pass_ms(10_000)
    while core.delays.next_deadline_ms() is not None:
        core.delays.run(core.clock.now_ms(), core.clock.mono_ms())
        core.settle()
    assert readable(core) == {0: b"before", 1: b"after"}
    assert [row.kind for row in core.poison_records.all()] == ["delayed message"]


def test_an_intact_log_is_not_changed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert run(f"log repair --data {data}", capsys)[:2] == (0, "The log is intact; nothing was changed.\n")
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_a_log_without_its_beginning_and_its_state_cannot_be_repaired(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segments(data)[0].unlink()
    (data / "checkpoint").unlink()
    status, out, err = run(f"log repair --data {data}", capsys)
    assert (status, out) == (1, "")
    assert err.startswith("duolog: the log cannot be repaired, restore a backup: log/ has neither")


def test_the_log_of_a_running_broker_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = RealFiles(str(data))
    lock = files.lock(LOCK_PATH)
    status, _, err = run(f"log repair --data {data}", capsys)
    files.close(lock)
    assert (status, err) == (1, f"duolog: --data {data}: a broker is using the directory; stop it first\n")
