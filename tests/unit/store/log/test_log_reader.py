"""A LogReader returns each unit once, wherever its ranges begin, and no bytes of a message that resemble a unit."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duolog.store.entry import FIRST_FRAME_FORM
from duolog.store.errors import Corruption, StoreError
from duolog.store.files import RealFiles
from duolog.store.log.log_reader import LogRange, LogReader
from duolog.store.options import StoreOptions
from duolog.store.store import Store
from duolog.store.unit import Frame
from tests.unit.store.model import Notes

KEY = 1 << 16


def write(folder: Path, bodies: list[bytes]) -> int:
    """Write a log of one segment; gives the position where it ends."""
    store = Store.open(RealFiles(str(folder)), StoreOptions(), Notes(), 1000)
    for body in bodies:
        store.append([Frame(store.queue(KEY), FIRST_FRAME_FORM, body)], 1000)
    end = store.next_position
    store.close(1000)
    return end


def frames(folder: Path, *places: int) -> list[bytes]:
    """Read the frames of all pieces, each from one place to the next."""
    with LogReader(str(folder)) as reader:
        return [
            bytes(entry.frame)
            for start, end in itertools.pairwise(places)
            for unit in reader.units(LogRange("log/00000000000000000000.log", 0, start, end))
            for entry in unit.entries()
            if entry.key == KEY
        ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 300), max_size=20), cuts=st.sets(st.integers(0, 5000)))
def test_pieces_give_each_unit_once(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cuts: set[int]) -> None:
    folder = tmp_path_factory.mktemp("log")
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    end = write(folder, bodies)
    places = [0, *sorted(cut for cut in cuts if 0 < cut < end), end]
    assert frames(folder, *places) == bodies


def test_unit_inside_a_message_is_none(tmp_path: Path) -> None:
    write(tmp_path / "one", [b"inner"])
    inner = (tmp_path / "one" / "log" / "00000000000000000000.log").read_bytes()
    end = write(tmp_path / "two", [inner, b"after"])
    assert frames(tmp_path / "two", 56, end) == [b"after"]


def test_damage_and_a_missing_file_are_said(tmp_path: Path) -> None:
    end = write(tmp_path, [b"one", b"two" * 100, b"three"])
    path = tmp_path / "log" / "00000000000000000000.log"
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"two")] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(Corruption, match="CRC"):
        frames(tmp_path, 0, end)
    path.unlink()
    with pytest.raises(StoreError, match="does not exist"):
        frames(tmp_path, 0, end)
