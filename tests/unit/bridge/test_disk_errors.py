"""Proves what each error of the disk comes to: one of the decided outcomes, wherever in a history it strikes.

A whole core sends, delays, spills, commits, retains, takes checkpoints and reads, while one operation of the disk
fails once. Whatever fails, only a StoreError reaches the caller; what goes on in the background goes on; and after a
kill or a power cut all that was acknowledged is there. Whether writing goes on is a row of OUTCOMES.
"""

import errno
from collections.abc import Callable
from typing import Any, cast

import pytest

from duolog.bridge.config import DelayOptions, Options, RetentionOptions
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.errors import StoreError
from duolog.store.log.cold_read import ColdRead
from duolog.store.options import StoreOptions
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk
from tests.kit.faulty_disk import OPERATIONS, FaultyDisk

SECOND, MINUTE = 1_000, 60_000
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ESTALE)

pytestmark = pytest.mark.slow  # A history for each operation and error takes seconds.
SMALL = StoreOptions(segment_bytes=16 << 10, reserve_bytes=4 << 10, tail_bytes=4 << 10, checkpoint_interval_ms=5_000)
OPTIONS = Options(retention=RetentionOptions(check_interval_ms=SECOND), delay=DelayOptions(near_ms=10 * SECOND))


class Struck(ManualCore):
    """A core that goes through a history, and knows what was acknowledged."""

    def __init__(self, disk: CrashDisk) -> None:
        super().__init__(OPTIONS, disk, SMALL)
        self.acknowledged: dict[str, list[bytes]] = {"kept": [], "short": []}
        self.topic("kept", 1)
        self.topic("short", 1, retention_records="3")
        self.settle()

    def send(self, name: str, number: int, properties: bytes = b"") -> None:
        topic, body = self.topics.get(name), b"%s-%d;" % (name.encode(), number) + bytes(400)
        assert topic is not None
        one = Message("", body, properties, born_ms=self.clock.now_ms())
        appended = self.publisher.publish_messages(topic, 0, [one], self.clock.now_ms())

        def done(error: StoreError | None) -> None:
            if error is None and not properties:
                self.acknowledged[name].append(body.split(b";")[0])

        self.store.when(appended.promise, done)

    def half(self) -> None:
        self.halves.prepare(Message("", b"half", b"", born_ms=0), "payments", None, self.clock.now_ms())

    def read(self, name: str, offset: int) -> None:
        topic = self.topics.get(name)
        assert topic is not None
        queue = topic.queues[0]
        found = self.store.reader.read(queue, max(offset, queue.start_offset), max_bytes=4096, until=queue.visible_end)
        if isinstance(found, ColdRead):
            found.start(lambda entries: None)

    def background(self) -> None:
        self.clock.pass_ms(2 * SECOND)
        now_ms, mono_ms = self.clock.now_ms(), self.clock.mono_ms()
        for run in (self.delays.timers.tree.run, self.delays.run, self.schedules.run, self.maintenance.run):
            attempt(lambda run=run: run(now_ms, mono_ms))

    def go_through(self, rounds: int) -> None:
        for number in range(rounds):
            due_ms = self.clock.now_ms() + (SECOND if number % 2 else 100 * SECOND)
            attempt(lambda number=number: self.send("kept", number))
            attempt(lambda number=number: self.send("short", number))
            attempt(
                lambda number=number, due_ms=due_ms: self.send("kept", number, b"TIMER_DELIVER_MS\x01%d\x02" % due_ms)
            )
            attempt(self.half)
            self.disk.cached = number % 2 == 0
            attempt(lambda: self.read("kept", 0))
            self.settle()
            for _ in range(4):
                self.background()
                self.settle()


def attempt(step: Callable[[], object]) -> None:
    """The callers' own answers are made of StoreErrors; anything else would be a fault of the broker."""
    try:
        step()
    except StoreError:
        pass


def bodies(core: ManualCore, name: str) -> list[bytes]:
    queue = core.topics.get(name).queues[0]  # type: ignore[union-attr]
    found = core.store.reader.read(queue, queue.start_offset, max_bytes=1 << 20, until=queue.visible_end)
    if isinstance(found, ColdRead):
        entries: list[Any] = []
        found.start(entries.append)
        found = entries[0]
    return [bytes(entry.frame) for entry in cast(list[Any], found)]


SPACE = frozenset((errno.ENOSPC, errno.EMFILE))
NEVER, ALL = frozenset[int](), frozenset(ERRORS)

# The errors after which writing may end until a restart; after all others it goes on, as soon as the disk does.
OUTCOMES = {
    "open": ALL - SPACE,  # The open of a segment for writing, and of an index for a sync.
    "create": ALL - SPACE,
    "read": NEVER,
    "write": ALL - SPACE,
    "sync": ALL,
    "sync_directory": ALL - {errno.EMFILE},
    "size": NEVER,
    "truncate": ALL - SPACE,
    "reserve": ALL - SPACE,
    "rename": NEVER,
    "remove": NEVER,
    "remove_directory": NEVER,
    "make_directory": ALL - SPACE,
    "list": NEVER,
    "usage": NEVER,
}


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", OPERATIONS)
def test_an_error_of_the_disk_has_a_decided_outcome(kind: str, error: int) -> None:
    for nth in (1, 2, 3, 5, 8, 13):
        disk = FaultyDisk()
        core = Struck(disk)
        core.go_through(1)
        disk.arm(kind, nth, error)
        core.go_through(3)
        if not disk.failed:
            break
        core.clock.pass_ms(MINUTE)
        core.go_through(2)
        if error not in OUTCOMES[kind]:
            assert not core.store.refusal, f"{kind} number {nth}: {core.store.refusal}"
        for again in (disk.after_kill(), disk.after_power_cut(nth)):
            restarted = ManualCore(OPTIONS, again, SMALL, core.clock.now_ms())
            found = b"".join(bodies(restarted, "kept"))
            lost = [body for body in core.acknowledged["kept"] if body + b";" not in found]
            assert not lost, f"{kind} number {nth}: {lost}"


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_where_all_opens_fail_for_a_while_sends_are_refused_or_taken_and_nothing_is_lost(error: int) -> None:
    disk = FaultyDisk()
    core = Struck(disk)
    core.go_through(2)
    disk.arm("open", 1, error, failures=None)
    core.go_through(3)
    disk.heal()
    core.go_through(2)
    restarted = ManualCore(OPTIONS, disk.after_power_cut(7), SMALL, core.clock.now_ms())
    found = b"".join(bodies(restarted, "kept"))
    assert not [body for body in core.acknowledged["kept"] if body + b";" not in found]
