"""Proves for every kind of work that no call that may wait for a disk is made in the loop's thread.

A whole core runs on a disk that notes on which side each operation is made. A table has the kinds of work; what each
leaves to threads must be there, so that no row of the table is empty. Starting and stopping are not asked: nothing is
served then. What remains in the loop is `SEGMENT_ROLL`, once in each segment, and a write to the page cache.
"""

from collections.abc import Callable
from typing import Any, cast

import pytest

from duolog.bridge.config import DelayOptions, Options
from duolog.store.index.key_index import Search
from duolog.store.log.cold_read import ColdRead
from duolog.store.options import StoreOptions
from tests.kit.core import ManualCore
from tests.kit.sides import WORKER, Call, SidedDisk, Threads
from tests.kit.slices import finished
from tests.unit.bridge.publish_bench import NOW, message

SMALL = StoreOptions(segment_bytes=1 << 15, reserve_bytes=4096, tail_bytes=1 << 14, open_segments_max=4)
NEAR_MS = 60_000
HOUR_MS = 3_600_000

# The file of a new segment is made, its blocks are reserved, and those that the one before did not use are given back:
# the bytes that the turn has appended go there at its end, and what is promised for them waits for that.
SEGMENT_ROLL = {("create", ".log"), ("reserve", ".log"), ("truncate", ".log")}


class SidedCore(ManualCore):
    """A core with threads of its own, which work when the test lets them."""

    def __init__(self) -> None:
        self.sides = SidedDisk()
        super().__init__(Options(delay=DelayOptions(near_ms=NEAR_MS)), cast(Any, self.sides), SMALL, NOW)
        self.threads = Threads(self.sides)
        executors = self.store.executors
        executors.background = executors.readers = executors.searches = self.delays.timers.tree.context.executor = (
            self.threads
        )
        self.sides.calls.clear()

    def _sync(self) -> None:
        self.sides.side, before = WORKER, self.sides.side
        super()._sync()
        self.sides.side = before

    def work(self) -> None:
        """Run the threads and the loop until neither has work."""
        self.settle()
        while self.threads.run_all():
            self.settle()

    def checkpoint(self) -> None:
        self.store.checkpoint(0)
        self.work()

    def fill(self, name: str, messages: int = 24, size: int = 1000) -> None:
        topic = self.topic(name, 4)
        for number in range(messages):
            self.publish(topic, bytes(size), queue_id=number % 4)


def delete_topics(core: SidedCore) -> None:
    for number in range(5):
        core.topics.delete(core.topic(f"orders-{number}", 4), 0)
    core.checkpoint()
    core.fill("later")
    core.checkpoint()


def retain(core: SidedCore) -> None:
    for topic in [*core.topics.all()]:
        for queue in topic.queues:
            core.store.retention.expire(queue, keep_records=1, now_ms=0)
            core.store.retention.trim(queue, max(queue.start_offset, queue.visible_end - 1), 0)
    core.work()
    finished(core.store.retention.remove_dead_segments())
    core.checkpoint()


def roll_segments(core: SidedCore) -> None:
    core.fill("orders-0", 60)


def checkpoint(core: SidedCore) -> None:
    core.fill("orders-1", 10)
    core.checkpoint()


def flush_an_index(core: SidedCore) -> None:
    one = message(b"x")
    topic = core.topic("fresh", 1)
    for _ in range(1300):
        core.publisher.publish_messages(topic, 0, [one], core.clock.now_ms())
    core.work()


def search_keys(core: SidedCore) -> None:
    search = Search(b"k", 0, 1 << 60, 10, keys_of=lambda stored: [b"k"], matches=lambda queue, stored: [queue.key])
    queues = [(queue, queue.visible_end) for queue in core.store.queues()]
    core.store.reader.search(queues, search, lambda outcome: None)
    core.work()
    assert search.found


def read_what_is_cold(core: SidedCore) -> None:
    read = core.topic("orders-3", 4).queues[0]
    for _ in range(2):
        answer = core.store.reader.read(read, 0, max_bytes=1 << 20, until=read.visible_end)
        if isinstance(answer, ColdRead):
            answer.start(lambda outcome: None)
            core.work()
    assert not isinstance(core.store.reader.read(read, 0, max_bytes=1 << 20, until=read.visible_end), ColdRead)


def find_by_time(core: SidedCore) -> None:
    for queue in core.topic("orders-3", 4).queues:
        found = core.store.reader.find_by_store_time(queue, 0, queue.visible_end)
        if isinstance(found, ColdRead):
            found.start(lambda outcome: None)
        core.work()


def look_at_the_disk(core: SidedCore) -> None:
    core.store.check_disk()
    core.work()
    assert core.store.write_state.usage[0] > 0


def put_timers_into_tables_and_take_them_out(core: SidedCore) -> None:
    topic = core.topic("orders-4", 4)
    for number in range(20):
        due_ms = core.clock.now_ms() + HOUR_MS + number
        core.publisher.publish_messages(
            topic, 0, [message(b"x", b"TIMER_DELIVER_MS\x01%d\x02" % due_ms)], core.clock.now_ms()
        )
    core.work()
    for _ in range(60):
        core.clock.pass_ms(NEAR_MS)
        now_ms, mono_ms = core.clock.now_ms(), core.clock.mono_ms()
        for _ in range(4):
            core.delays.timers.tree.run(now_ms, mono_ms)
            core.delays.run(now_ms, mono_ms)
            core.work()
    core.checkpoint()


WORK: dict[str, tuple[Callable[[SidedCore], None], set[str]]] = {
    "topics are deleted": (delete_topics, {"list", "remove", "remove_directory"}),
    "retention": (retain, {"remove", "rename", "create"}),
    "segments are rolled": (roll_segments, {"sync"}),
    "a checkpoint": (checkpoint, {"open", "create", "sync", "rename", "sync_directory"}),
    "an index is flushed": (flush_an_index, {"make_directory", "create"}),
    "keys are searched": (search_keys, {"open", "read", "list"}),
    "cold reads": (read_what_is_cold, {"open", "read"}),
    "look-ups by time": (find_by_time, set()),
    "the disk mark": (look_at_the_disk, {"usage"}),
    "tables of timers": (put_timers_into_tables_and_take_them_out, {"create", "open", "sync", "remove"}),
}


@pytest.mark.parametrize("name", WORK)
def test_no_call_that_may_block_is_made_in_the_loop(name: str) -> None:
    work, left_to_threads = WORK[name]
    core = SidedCore()
    for number in range(5):
        core.fill(f"orders-{number}")
    for _ in range(2):  # At the second checkpoint indexes are idle, and leave memory.
        core.fill("others", 2)
        core.checkpoint()
    core.sides.calls.clear()
    work(core)
    found = [call for call in core.sides.blocking_on_the_loop() if not is_segment_roll(call)]
    assert found == []
    assert left_to_threads <= core.sides.worker_kinds()


def is_segment_roll(call: Call) -> bool:
    return call.path.startswith("log/") and (call.kind, call.path[-4:]) in SEGMENT_ROLL
