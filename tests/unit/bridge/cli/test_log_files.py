"""`duolog log` on real directories: statuses, what is printed, and that nothing is changed while a broker serves."""

import json
from pathlib import Path
from typing import Any

import pytest

from duolog.store.files import RealFiles
from duolog.store.log.format import UNIT_HEADER_SIZE
from duolog.store.store import Store
from tests.kit.core import ManualCore
from tests.kit.damage import flip
from tests.unit.bridge.batches import batch
from tests.unit.bridge.cli.test_main import run
from tests.unit.store.model import Notes
from tests.unit.store.recovery.test_recovery import DURABLE, SMALL_SEGMENTS, UNIT_SIZE, append, let_go, sync


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory with several segments, which no broker uses."""
    store = Store.open(RealFiles(str(tmp_path)), SMALL_SEGMENTS, Notes(), now_ms=1000)
    for _ in range(DURABLE):
        append(store)
    sync(store)
    store.close(1000)
    return tmp_path


def damage_first_unit(data: Path) -> None:
    """Flip a bit in the body of the first unit that has an entry."""
    flip(data / "log" / "00000000000000000000.log", UNIT_HEADER_SIZE + UNIT_SIZE - 8, 0x10)


def test_verify_of_an_intact_log_has_status_0(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(f"log verify --data {data} --json", capsys)
    found = json.loads(out)
    assert (status, err, found["intact"], found["entries"], found["damage"]) == (0, "", True, DURABLE, [])


def test_verify_names_damage_and_has_status_1(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage_first_unit(data)
    status, out, _ = run(f"log verify --data {data}", capsys)
    assert status == 1
    assert f"damage: log/00000000000000000000.log positions {UNIT_HEADER_SIZE}.." in out


def test_verify_beside_a_broker_leaves_the_newest_segment_out(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(RealFiles(str(data)), SMALL_SEGMENTS, Notes(), now_ms=1000)
    status, out, _ = run(f"log verify --data {data}", capsys)
    let_go(store)
    assert status == 0
    assert "the newest segment was not read" in out


def test_what_is_no_data_directory_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(f"log verify --data {tmp_path}", capsys)
    assert (status, out) == (2, "")
    assert err == f"duolog: --data {tmp_path}: not a data directory, because it has no directory log/\n"


# -- Dump


@pytest.fixture
def messages(tmp_path: Path) -> Path:
    """Return the data directory of a broker that was stopped, with messages of both client protocols."""
    core = ManualCore(disk=RealFiles(str(tmp_path / "data")))
    orders, payments = core.topic("orders"), core.topic("payments")
    core.publish(orders, b"of RocketMQ\x1b[2J", tag="red")
    core.publisher.publish_batch(orders, 0, batch([b"first", b"second"], keys=[b"k1", b"k2"]), core.clock.now_ms())
    core.publish(payments, b"\xff\xfe", queue_id=1)
    core.settle()
    core.store.close(core.clock.now_ms())
    return tmp_path / "data"


def dumped(arguments: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the units of `duolog log dump --json`."""
    status, out, err = run(f"log dump {arguments} --json", capsys)
    assert (status, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_dump_has_each_record_of_both_protocols(messages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    units = dumped(f"--data {messages} --topic orders", capsys)
    entries = [entry for unit in units for entry in unit["entries"]]
    assert [(entry["kind"], entry["queue"], entry["offset"], entry["count"]) for entry in entries] == [
        ("rocketmq", 0, 0, 1),
        ("kafka", 0, 1, 2),
    ]
    records = [record for entry in entries for record in entry["records"]]
    assert [(each["offset"], each["key"], each["value"]) for each in records] == [
        (0, None, "of RocketMQ\x1b[2J"),
        (1, "k1", "first"),
        (2, "k2", "second"),
    ]
    assert records[0]["headers"]["TAGS"] == "red"


def test_dump_by_queue_and_by_positions(messages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (unit,) = dumped(f"--data {messages} --queue 1", capsys)
    (entry,) = unit["entries"]
    assert (entry["topic"], entry["records"][0]["value"]) == ("payments", "0xfffe")
    everything = dumped(f"--data {messages}", capsys)
    first, last = everything[0]["position"], everything[-1]["position"]
    assert (everything[0]["opened"], everything[-1]["closed"]) == (True, True)
    assert dumped(f"--data {messages} --from {first + 1} --until {last}", capsys) == everything[1:-1]


def test_dump_names_topics_without_a_checkpoint(messages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = dumped(f"--data {messages} --topic payments", capsys)
    (messages / "checkpoint").unlink()
    assert dumped(f"--data {messages} --topic payments", capsys) == expected


def test_dump_in_text_escapes_what_controls_a_terminal(messages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(f"log dump --data {messages}", capsys)
    assert status == 0
    assert "value=of RocketMQ\\x1b[2J TAGS=red" in out
    assert "\x1b" not in out
    assert "TopicCreated(number=" in out


def test_dump_shows_damage_and_goes_on_behind_it(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage_first_unit(data)
    _, out, _ = run(f"log dump --data {data}", capsys)
    assert f"{UNIT_HEADER_SIZE}..{UNIT_HEADER_SIZE + UNIT_SIZE} no valid unit: the CRC is" in out
    assert "closed" in out


def test_dump_shows_zeros_between_units_but_not_the_reserve_at_the_end(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no valid unit" not in run(f"log dump --data {data}", capsys)[1]
    path = data / "log" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[UNIT_HEADER_SIZE : UNIT_HEADER_SIZE + UNIT_SIZE] = bytes(UNIT_SIZE)
    path.write_bytes(content)
    out = run(f"log dump --data {data}", capsys)[1]
    assert f"{UNIT_HEADER_SIZE}..{UNIT_HEADER_SIZE + UNIT_SIZE} no valid unit: the magic is 0x00000000" in out


def test_dump_of_an_unknown_topic_is_one_line(messages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(f"log dump --data {messages} --topic nobody", capsys)
    assert (status, out) == (1, "")
    assert err == "duolog: the part of the log that was read does not name a topic nobody\n"
