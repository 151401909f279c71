"""What a store should hold: a model to compare with, and the replayer and executors that tests of the store share."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from duolog.store.entry import FIRST_FRAME_FORM, EntrySlot, Stored
from duolog.store.index.queue import Queue
from duolog.store.store import Store
from duolog.store.workers import Failure, Inline
from tests.kit.snapshot import Snapshot

T = TypeVar("T")

SEEN_MAX = 3  # as many last frames of each queue does the replayer know


class Notes:
    """A small replayer: named values from state records, and the last frames of each queue from the frames."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.seen: dict[int, list[int]] = {}

    def replay_state(self, payload: bytes, slot: EntrySlot) -> None:
        kind, name, value = payload.decode().split("=", 2)
        if kind == "seen":
            self.seen[int(name)] = [int(offset) for offset in value.split(",")]
        elif kind == "set":
            self.values[name] = value
        elif kind == "unset":
            self.values.pop(name, None)
        else:
            self.forget_topic(int(name))

    def replay_frame(self, key: int, slot: EntrySlot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        seen = self.seen.setdefault(key, [])
        if not seen or slot.base_offset > seen[-1]:
            seen.append(slot.base_offset)
            del seen[:-SEEN_MAX]

    def set_aside(self, kind: str, position: int, what: str, error: Exception) -> None:
        raise error

    def forget_topic(self, topic: int) -> None:
        for key in [key for key in self.seen if key >> 16 == topic]:
            del self.seen[key]

    def snapshot(self) -> Snapshot:
        values = [f"set={name}={value}".encode() for name, value in sorted(self.values.items())]
        seen = [f"seen={key}={','.join(map(str, offsets))}".encode() for key, offsets in sorted(self.seen.items())]
        return Snapshot(values + seen)


@dataclass
class Written:
    """A frame as it should read back."""

    base_offset: int
    count: int
    body: bytes
    position: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count


@dataclass
class ModelQueue:
    start_offset: int = 0
    end_offset: int = 0
    frames: list[Written] = field(default_factory=list)


@dataclass
class Model:
    """What the log says up to some position."""

    queues: dict[int, ModelQueue] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)

    def append(self, key: int, frame: Written) -> None:
        queue = self.queues.setdefault(key, ModelQueue())
        assert frame.base_offset == queue.end_offset, f"{frame} behind {queue.end_offset}"
        queue.frames.append(frame)
        queue.end_offset = frame.end_offset
        slot = EntrySlot(frame.position, frame.base_offset, 0)
        self.notes.replay_frame(key, slot, FIRST_FRAME_FORM, frame.count, memoryview(frame.body), b"")

    def trim(self, key: int, start_offset: int) -> None:
        self.queues[key].start_offset = start_offset

    def drop_topic(self, topic: int) -> None:
        self.queues = {key: queue for key, queue in self.queues.items() if key >> 16 != topic}

    def check(self, store: Store, notes: Notes) -> None:
        """Every queue has the offsets, every live frame reads back, the state is the same."""
        found = {queue.key: (queue.start_offset, queue.end_offset) for queue in store.queues() if queue.end_offset}
        assert found == {
            key: (queue.start_offset, queue.end_offset) for key, queue in self.queues.items() if queue.end_offset
        }
        assert notes.values == self.notes.values
        for key, queue in self.queues.items():
            live = [frame for frame in queue.frames if frame.end_offset > queue.start_offset]
            assert [
                (stored.base_offset, stored.count, bytes(stored.frame), stored.position)
                for stored in read_all(store, store.queue(key))
            ] == [(frame.base_offset, frame.count, frame.body, frame.position) for frame in live]
            assert store.queue(key).size_bytes == sum(len(frame.body) for frame in live)


def read_all(store: Store, queue: Queue) -> list[Stored]:
    """Read from the log start to the visible end, cold reads included."""
    found: list[Stored] = []
    offset = queue.start_offset
    while offset < queue.visible_end:
        answer = store.reader.read(queue, offset, max_bytes=1000, until=queue.visible_end)
        if not isinstance(answer, list):
            outcome: list[object] = []
            answer.start(outcome.append)
            (answer,) = outcome
            assert isinstance(answer, list), answer
        assert answer, f"nothing at {offset} of {queue}, which ends at {queue.visible_end}"
        found += answer
        offset = answer[-1].next_offset
    return found


class Deferred:
    """An executor whose work is done when the test says so, one piece at a time."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        self.waiting.append(partial(Inline().submit, run, done))

    def run_one(self) -> None:
        if self.waiting:
            self.waiting.popleft()()
