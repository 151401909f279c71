"""Timers in sorted tables behave like those in memory: random histories of API requests, compared with a dict.

Timers that are due in more than a second are in tables; clocks step, brokers are killed, tables are compacted, topics
are deleted or paused, and due timers of paused topics go to tables.
"""

import asyncio
import json
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from aiohttp.web import HTTPNotFound
from multidict import CIMultiDict

from duolog.bridge.config import DelayOptions, Options, TopicsOptions
from duolog.delay.timers import WAITING_MAX, TooManyTimers
from duolog.delay.tree.tree import TimerTree
from duolog.protocol.kafka import record_reader
from duolog.store.entry import Promise
from duolog.store.options import StoreOptions
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk
from tests.kit.http import TimerHandlers
from tests.kit.rows import first_in_unit
from tests.unit.bridge.batches import batch
from tests.unit.bridge.publish_bench import NOW, now

NEAR_MS = 1_000
SECTIONS: dict[str, Any] = {"topics": TopicsOptions(queues=1), "delay": DelayOptions(near_ms=NEAR_MS)}
SMALL = StoreOptions(segment_bytes=1 << 15, reserve_bytes=4096, tail_bytes=1 << 14, checkpoint_bytes=1 << 14)
SPANS = (500, 3_000, 60_000, 30 * 86_400_000)
TOPICS = ("orders", "refunds")
KEYS = ("a", "b", "c")


class Pending(NamedTuple):
    due_ms: int
    topic: str
    key: str | None
    id: str


def is_behind(tree: TimerTree) -> bool:
    """Return whether a topic with timers in tables has a cursor of its own that is behind the shared one."""
    shared = (tree.cursors.shared_ms, 0)
    return any(tree.cursors.position_of(topic) < shared for topic in tree.deletions.by_topic)


async def kept(promise: Promise) -> None:
    pass


async def read(request: Any) -> bytes:
    return cast(bytes, request.body)


class Bench:
    """A core with the HTTP API of timers."""

    def __init__(self, disk: CrashDisk | None = None, now_ms: int = NOW) -> None:
        disk = disk or CrashDisk()
        self.core = ManualCore(Options(**SECTIONS), disk, SMALL, now_ms)
        self.api = TimerHandlers(self.core, kept, read)
        self.tree = self.core.delays.timers.tree

    def call(self, name: str, body: object = None, match: str = "", **query: object) -> Any:
        request = SimpleNamespace(
            get={}.get,  # No security, so no session.
            headers=CIMultiDict(),
            body=json.dumps(body).encode(),
            query={key: str(value) for key, value in query.items() if value is not None},
            match_info={"id": match, "name": match},
        )
        answer = asyncio.run(getattr(self.api, name)(request))
        self.core.settle()
        return json.loads(answer.body)

    def now_ms(self) -> int:
        return self.core.clock.now_ms()

    def turn(self, mono_ms: int = 0) -> None:
        """Run one slice of each job, after `mono_ms` of monotonic time."""
        now_ms = self.now_ms()
        self.core.clock.pass_ms(mono_ms)
        self.core.clock.set_now_ms(now_ms)
        self.tree.run(now_ms, self.core.clock.mono_ms())
        self.core.delays.run(now_ms, self.core.clock.mono_ms())
        self.core.settle()

    def turn_until_idle(self) -> None:
        for _ in range(8):
            self.turn(NEAR_MS)
            while (
                self.tree.next_deadline_ms() == 0 or (self.core.delays.next_deadline_ms() or NOW * 2) <= self.now_ms()
            ):
                self.turn()

    def bodies(self, name: str) -> list[bytes]:
        return bodies(self.core, name)

    def restarted(self) -> "Bench":
        return Bench(self.core.disk.after_kill(), self.now_ms())


def bodies(core: ManualCore, name: str) -> list[bytes]:
    """Return the bodies in the only queue of a topic."""
    topic = core.topic(name, 1)
    queue = topic.queues[0]
    found: list[bytes] = []
    while (offset := queue.start_offset + len(found)) < queue.visible_end:
        frames = now(core.reader.read_for_kafka(queue, topic, offset, 1 << 30, queue.visible_end))
        found += [record.value for frame in frames for record in record_reader.records(frame, 1 << 24)]
    return found


class History:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.bench = Bench()
        for name in TOPICS:
            self.bench.core.topic(name, 1)
        self.pending: dict[bytes, Pending] = {}
        self.paused: set[str] = set()
        self.delivered: set[bytes] = set()
        self.sent = 0
        self.flushes = self.merges = self.passed = 0

    def run(self, steps: int) -> None:
        weighted = [
            (self.add, 8), (self.add_batch, 4), (self.cancel, 4), (self.cancel_key, 2), (self.move, 4),
            (self.move_key, 2), (self.deliver_now, 2), (self.turn, 30), (self.pass_time, 6), (self.step_clock, 1),
            (self.look, 8), (self.restart, 1), (self.take_all, 2), (self.pause_or_resume, 3),
        ]  # fmt: skip
        steps_of, weights = zip(*weighted, strict=True)
        for _ in range(steps):
            self.rng.choices(steps_of, weights)[0]()
            self.note_delivered()
        for topic in [*self.paused]:
            self.pause_or_resume(topic)
        self.take_all()

    # -- Steps

    def some_due_ms(self) -> int:
        return self.bench.now_ms() + self.rng.randrange(1, self.rng.choice(SPANS))

    def add(self) -> None:
        topic, key = self.rng.choice(TOPICS), self.rng.choice((None, *KEYS))
        replaces = key is not None and self.rng.random() < 0.3
        body, due_ms = b"%d" % self.sent, self.some_due_ms()
        self.sent += 1
        if replaces:
            self.drop(lambda one: (one.topic, one.key) == (topic, key))
        wanted = {"topic": topic, "key": key, "value": body.decode(), "at_ms": due_ms, "replace": replaces}
        added = self.bench.call("_add", wanted)
        self.pending[body] = Pending(due_ms, topic, key, added["id"])

    def add_batch(self) -> None:
        topic, delay = self.rng.choice(TOPICS), self.rng.randrange(1, self.rng.choice(SPANS))
        bodies = [b"%d" % (self.sent + number) for number in range(self.rng.randint(1, 20))]
        self.sent += len(bodies)
        core = self.bench.core
        before = {row["id"] for row in self.listed(topic)}
        one = batch(bodies, headers=[("TIMER_DELAY_MS", b"%d" % delay)])
        core.publisher.publish_batch(core.topic(topic, 1), 0, one, self.bench.now_ms())
        core.settle()
        added = [row["id"] for row in self.listed(topic) if row["id"] not in before]
        for body, text in zip(bodies, added, strict=True):
            self.pending[body] = Pending(self.bench.now_ms() + delay, topic, None, text)

    def drop(self, is_meant: Any) -> list[bytes]:
        found = [body for body, one in self.pending.items() if is_meant(one)]
        for body in found:
            del self.pending[body]
        return found

    def some_body(self) -> bytes | None:
        return self.rng.choice([*self.pending]) if self.pending else None

    def cancel(self) -> None:
        if (body := self.some_body()) is not None:
            for _ in range(2):
                assert self.bench.call("_cancel", match=self.pending[body].id) == {"outcome": "cancelled"}
            del self.pending[body]

    def cancel_key(self) -> None:
        topic, key = self.rng.choice(TOPICS), self.rng.choice(KEYS)
        found = self.drop(lambda one: (one.topic, one.key) == (topic, key))
        outcome = self.bench.call("_cancel_named", topic=topic, key=key)["outcome"]
        assert not found or outcome == "cancelled"

    def move(self) -> None:
        if (body := self.some_body()) is not None:
            due_ms = self.some_due_ms()
            outcome = self.bench.call("_reschedule", {"at_ms": due_ms}, self.pending[body].id)["outcome"]
            assert outcome == "rescheduled"
            self.pending[body] = self.pending[body]._replace(due_ms=due_ms)

    def move_key(self) -> None:
        topic, key, due_ms = self.rng.choice(TOPICS), self.rng.choice(KEYS), self.some_due_ms()
        self.bench.call("_reschedule_named", {"topic": topic, "key": key, "at_ms": due_ms})
        for body, one in self.pending.items():
            if (one.topic, one.key) == (topic, key):
                self.pending[body] = one._replace(due_ms=due_ms)

    def deliver_now(self) -> None:
        if (body := self.some_body()) is not None:
            self.bench.call("_now", match=self.pending[body].id)
            self.pending[body] = self.pending[body]._replace(due_ms=self.bench.now_ms())

    def turn(self) -> None:
        before = len(self.bench.tree.context.tables.manifest)
        self.bench.turn(self.rng.choice((0, 0, 200, 2_000)))
        self.flushes += len(self.bench.tree.context.tables.manifest) > before
        self.merges += len(self.bench.tree.context.tables.manifest) < before - 2
        self.passed += is_behind(self.bench.tree)

    def pass_time(self) -> None:
        self.bench.core.clock.pass_ms(self.rng.randrange(1, self.rng.choice(SPANS[:3])))

    def step_clock(self) -> None:
        step_ms = self.rng.choice((-100_000, -3_000, 86_400_000))
        self.bench.core.clock.set_now_ms(self.bench.now_ms() + step_ms)

    def pause_or_resume(self, topic: str | None = None) -> None:
        topic = topic or self.rng.choice(TOPICS)
        self.bench.call("_resume" if topic in self.paused else "_pause", match=topic)
        self.paused ^= {topic}

    def restart(self) -> None:
        self.bench = self.bench.restarted()

    def take_all(self) -> None:
        self.bench.turn_until_idle()
        self.note_delivered()
        late = [
            one for one in self.pending.values() if one.due_ms <= self.bench.now_ms() and one.topic not in self.paused
        ]
        assert not late, f"due and not delivered at {self.bench.now_ms()}"

    # -- Invariants

    def note_delivered(self) -> None:
        for topic in TOPICS:
            found = self.bench.bodies(topic)
            assert len(found) == len(set(found)), "delivered twice"
            for body in found:
                if body not in self.delivered:
                    one = self.pending.pop(body)
                    assert (one.topic, one.due_ms <= self.bench.now_ms()) == (topic, True), "early"
                    assert topic not in self.paused
                    self.delivered.add(body)

    def listed(self, topic: str | None = None, key: str | None = None, **span: int) -> list[Any]:
        rows, after = [], None
        while True:
            page = self.bench.call("_list", topic=topic, key=key, after=after, limit=7, **span)
            rows += page["timers"]
            if (after := page["next"]) is None:
                return rows

    def look(self) -> None:
        """A listing of a random range returns what the model has."""
        topic = self.rng.choice((None, *TOPICS))
        key = self.rng.choice((None, None, *KEYS)) if topic else None
        start_ms = self.bench.now_ms() + self.rng.randrange(-1_000, 5_000)
        until_ms = start_ms + self.rng.randrange(1, self.rng.choice(SPANS))
        expected = sorted(
            (one.due_ms, one.id)
            for one in self.pending.values()
            if topic in (None, one.topic) and key in (None, one.key) and start_ms <= one.due_ms < until_ms
        )
        span = {"from_ms": start_ms, "until_ms": until_ms}
        assert sorted((row["due_ms"], row["id"]) for row in self.listed(topic, key, **span)) == expected
        assert self.bench.call("_count", topic=topic, key=key, **span) == {"count": len(expected)}
        if key is None:
            counts = self.bench.call("_histogram", topic=topic, bins=7, **span)["counts"]
            assert sum(counts) == len(expected)
            of_topic = [one for one in self.pending.values() if topic in (None, one.topic)]
            assert self.bench.call("_count", topic=topic) == {"count": len(of_topic)}
        if (body := self.some_body()) is not None:
            assert self.bench.call("_view", match=self.pending[body].id)["value"] == body.decode()


def test_senders_are_refused_while_too_much_waits_for_the_disk() -> None:
    bench = Bench()
    bench.core.topic("orders", 1)
    wanted = {"topic": "orders", "value": "v", "delay_ms": 60_000}
    bench.tree.flush.waiting = WAITING_MAX + 1
    with pytest.raises(TooManyTimers, match="wait for the disk"):
        bench.call("_add", wanted)
    bench.turn(NEAR_MS)
    assert bench.call("_add", wanted)["topic"] == "orders"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_rows_of_a_deleted_topic_are_hidden_and_dropped_when_due(is_restarted: bool) -> None:
    bench, hour_ms = Bench(), 3_600_000
    ids = {}
    for name in TOPICS:
        bench.core.topic(name, 1)
        for hours in (1, 2):
            wanted = {"topic": name, "key": "a", "value": "v", "delay_ms": hours * hour_ms}
            ids.setdefault(name, []).append(bench.call("_add", wanted)["id"])
    bench.turn_until_idle()
    assert len(bench.tree.context.tables.manifest), "they are far"
    assert bench.call("_cancel", match=ids["refunds"][1])["outcome"] == "cancelled"  # It has no tombstone yet.
    bench = bench.restarted() if is_restarted else bench
    bench.core.topics.delete(bench.core.topic("refunds"), bench.now_ms())
    hidden, cancelled = ids["refunds"]

    def look(left: list[str], *, outcome: str) -> None:
        span = {"from_ms": NOW, "until_ms": NOW + 10 * hour_ms}
        assert [row["id"] for row in bench.call("_list")["timers"]] == left
        assert bench.call("_count") == bench.call("_count", **span) == {"count": len(left)}
        assert sum(bench.call("_histogram", bins=7, **span)["counts"]) == len(left)
        for verb, body in (("_cancel", None), ("_now", None), ("_reschedule", {"delay_ms": 1})):
            assert bench.call(verb, body, hidden) == {"outcome": outcome}, verb
            assert bench.call(verb, body, cancelled) == {"outcome": "cancelled"}, verb
        with pytest.raises(HTTPNotFound):
            bench.call("_view", match=hidden)

    look(ids["orders"], outcome="not_found")
    bench = bench.restarted()
    look(ids["orders"], outcome="not_found")
    bench.core.clock.pass_ms(hour_ms - NEAR_MS // 4)
    bench.turn_until_idle()
    look(ids["orders"], outcome="not_found")  # They are in memory again.
    bench.core.clock.pass_ms(NEAR_MS)
    bench.turn_until_idle()
    look(ids["orders"][1:], outcome="cancelled")
    assert bench.core.metrics.timers["dropped"] == 1


@pytest.mark.parametrize("seed", first_in_unit(range(6), 2))
def test_every_history_does_what_a_dict_would(seed: int) -> None:
    history = History(seed)
    history.run(120)
    assert history.flushes
    assert history.passed


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_many_histories_do_what_a_dict_would(seed: int) -> None:
    History(seed).run(1_000)
