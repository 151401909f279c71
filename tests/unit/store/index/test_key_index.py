"""Proves searches by key against a plain filter of the entries, and that blocks of hashes are only ever a shortcut.

An entry's frame is its keys with commas between them; a frame that begins with `?` cannot be opened.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.store.entry import FIRST_FRAME_FORM, Stored
from duolog.store.index.key_index import KEYS_DIRECTORY, Search
from duolog.store.index.queue import Queue, queue_key
from duolog.store.options import StoreOptions
from duolog.store.store import Store
from duolog.store.unit import Frame
from tests.kit.disk import CrashDisk
from tests.unit.store.model import Notes

OPTIONS = StoreOptions(flush="sync", segment_bytes=1 << 16, reserve_bytes=4096, tail_bytes=1 << 16)
KEY = queue_key(1, 0)
ROWS_IN_BLOCK = 4
NO_TIME, END_OF_TIME = 0, 1 << 40


@dataclass
class Searched:
    """A store with one queue of entries, stored a millisecond apart; counts the entries that searches opened."""

    disk: CrashDisk = field(default_factory=CrashDisk)
    opened: int = 0

    def __post_init__(self) -> None:
        self.store = Store.open(self.disk, OPTIONS, Notes(), 1000)
        self.store.keys.rows_in_block = ROWS_IN_BLOCK
        self.queue: Queue = self.store.queue(KEY)
        self.frames: list[bytes] = []

    def append(self, *frames: bytes) -> None:
        for frame in frames:
            self.store.append([Frame(self.queue, FIRST_FRAME_FORM, frame)], 1000 + len(self.frames))
            self.frames.append(frame)
        self.store.durability.write_and_sync()

    def search(
        self, key: bytes, begin: int = NO_TIME, end: int = END_OF_TIME, max_count: int = 1000, **more: Any
    ) -> list[int]:
        return self.run(Search(key, begin, end, max_count, self._keys_of, matches_of(key), **more)).found

    def run(self, search: Search[int]) -> Search[int]:
        self.store.reader.search([(self.queue, self.queue.visible_end)], search, lambda outcome: None)
        return search

    def _keys_of(self, entry: Stored) -> list[bytes] | None:
        self.opened += 1
        frame = bytes(entry.frame)
        return None if frame.startswith(b"?") else frame.split(b",")

    def blocks(self) -> list[str]:
        return self.disk.list(f"{KEYS_DIRECTORY}/1/0")


def matches_of(key: bytes) -> Any:
    return lambda queue, entry: [entry.base_offset] if key in bytes(entry.frame).lstrip(b"?").split(b",") else []


def numbers(count: int) -> list[bytes]:
    return [b"%d" % (number % 3) for number in range(count)]


frames = st.lists(
    st.builds(
        lambda unopened, keys: b"?" * unopened + b",".join(keys),
        st.sampled_from((0, 0, 0, 1)),
        st.lists(st.sampled_from((b"a", b"b", b"c", b"ab")), min_size=1, max_size=3),
    ),
    max_size=25,
)


@given(frames, frames, st.sampled_from((b"a", b"b", b"d")), st.integers(1, 6), st.data())
def test_search_finds_what_a_look_at_every_entry_finds(
    early: list[bytes], late: list[bytes], key: bytes, max_count: int, data: st.DataObject
) -> None:
    searched = Searched()
    searched.append(*early)
    searched.search(key)  # Makes blocks; those that are not full are made again.
    searched.append(*late)
    if data.draw(st.booleans(), label="trimmed"):
        searched.store.retention.trim(searched.queue, data.draw(st.integers(0, len(searched.frames))), 2000)
    begin, end = sorted(data.draw(st.tuples(st.integers(990, 1060), st.integers(990, 1060)), label="times"))
    expected = [
        at
        for at, frame in enumerate(searched.frames)
        if begin <= 1000 + at <= end and at >= searched.queue.start_offset and key in frame.lstrip(b"?").split(b",")
    ]
    assert searched.search(key, begin, end) == expected[::-1]
    assert searched.search(key, begin, end, max_count) == expected[::-1][:max_count]


def test_only_full_blocks_of_durable_entries_are_kept_and_kept_blocks_are_not_opened_again() -> None:
    searched = Searched()
    searched.append(*numbers(10))
    assert searched.search(b"1") == [7, 4, 1]
    assert (searched.opened, searched.blocks()) == (10, [f"{0:020}", f"{4:020}"])
    assert searched.search(b"2") == [8, 5, 2]
    assert searched.opened == 10 + 2


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "of another queue"])
def test_block_that_is_torn_or_of_other_rows_is_made_again(damage: str) -> None:
    searched = Searched()
    searched.append(*numbers(8))
    searched.search(b"1")
    path = f"{KEYS_DIRECTORY}/1/0/{0:020}"
    handle = searched.disk.open(path)
    data = bytearray(searched.disk.read(handle, searched.disk.size(handle), 0))
    if damage == "flipped":
        data[-1] ^= 1
    elif damage == "of another queue":
        data[8] ^= 1
    searched.disk.truncate(handle, {"empty": 0, "short": len(data) - 1}.get(damage, len(data)))
    searched.disk.write(handle, [data[: searched.disk.size(handle)]], 0)
    searched.disk.close(handle)
    opened = searched.opened
    assert searched.search(b"1") == [7, 4, 1]
    assert searched.opened == opened + ROWS_IN_BLOCK


def test_search_that_would_open_too_much_says_so_and_the_next_one_goes_on_behind_it() -> None:
    searched = Searched()
    searched.append(*numbers(12))
    searches = [
        searched.run(Search(b"1", NO_TIME, END_OF_TIME, 1000, searched._keys_of, matches_of(b"1"), rows_to_build=6))
        for _ in range(3)
    ]
    assert [(search.is_complete, search.found) for search in searches] == [
        (False, [10]),
        (False, [10, 7, 4]),
        (True, [10, 7, 4, 1]),
    ]


def test_search_ends_when_its_pause_says_so() -> None:
    searched = Searched()
    searched.append(*numbers(8))
    searched.store.keys.pause = lambda: True
    search = searched.run(Search(b"1", NO_TIME, END_OF_TIME, 1000, searched._keys_of, matches_of(b"1")))
    assert (search.is_complete, search.found, searched.opened) == (False, [], 0)


def test_blocks_of_a_deleted_topic_are_removed_now_or_at_the_next_start() -> None:
    searched = Searched()
    searched.append(*numbers(8))
    searched.search(b"1")
    left = searched.disk.after_kill()
    searched.store.drop_topic(1, 2000)
    assert searched.disk.list(KEYS_DIRECTORY) == []
    handle = left.open(f"{KEYS_DIRECTORY}/1/0/{0:020}")
    left.close(handle)
    left.make_directory(f"{KEYS_DIRECTORY}/99/0")
    left.close(left.open(f"{KEYS_DIRECTORY}/99/0/{0:020}", create=True))
    Store.open(left, OPTIONS, Notes(), 3000)
    assert left.list(KEYS_DIRECTORY) == ["1"]
