"""`duolog log` on real directories: statuses, what is printed, and that nothing is changed while a broker serves."""

import json
from pathlib import Path

import pytest

from duolog.store.files import RealFiles
from duolog.store.log.format import UNIT_HEADER_SIZE
from duolog.store.store import Store
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


def flip(data: Path, unit: int = 1) -> None:
    """Flip a bit in the body of a unit of the first segment."""
    path = data / "log" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[UNIT_HEADER_SIZE + unit * UNIT_SIZE - 8] ^= 0x10
    path.write_bytes(content)


def test_verify_of_an_intact_log_has_status_0(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(f"log verify --data {data} --json", capsys)
    found = json.loads(out)
    assert (status, err, found["intact"], found["entries"], found["damage"]) == (0, "", True, DURABLE, [])


def test_verify_names_damage_and_has_status_1(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(data)
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
