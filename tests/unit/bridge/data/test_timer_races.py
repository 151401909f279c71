"""Outcomes of commands are linearizable with delivery, also during flushes and reads of sorted tables.

Tasks of workers and their callbacks run at random moments between steps of the loop, so commands meet flushes, reads,
tombstones, compactions and each other. Each answered outcome must agree with all that is seen later.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from duolog.bridge.config import DelayOptions, Options, TopicsOptions
from duolog.bridge.data.delayed.delay_commands import Decision
from duolog.delay.cancellations import TimerOutcome
from duolog.delay.requested_delay import RequestedDelay
from duolog.protocol.kafka.record_batch import Record
from duolog.store.errors import StoreError
from duolog.store.options import StoreOptions
from duolog.store.workers import Failure
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk
from tests.kit.rows import first_in_unit
from tests.unit.bridge.data.test_far_timers import bodies
from tests.unit.bridge.publish_bench import NOW

NEAR_MS = 1_000
OPTIONS = Options(topics=TopicsOptions(queues=1), delay=DelayOptions(near_ms=NEAR_MS))
SMALL = StoreOptions(segment_bytes=1 << 15, reserve_bytes=4096, tail_bytes=1 << 14, checkpoint_bytes=1 << 14)
SPANS = (300, 3_000, 20_000)
KEYS = (b"a", b"b")
FOREVER_MS = NOW + 10**12


class Late:
    """An executor whose tasks run when the test calls `step`, in any order; callbacks run even later."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._tasks: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self._outcomes: list[tuple[Callable[[Any], None], Any]] = []

    def submit(self, run: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._tasks.append((run, done))

    def step(self) -> bool:
        """Run a task or a callback; return False if there is none."""
        if self._outcomes and (not self._tasks or self._rng.random() < 0.5):
            done, outcome = self._outcomes.pop(self._rng.randrange(len(self._outcomes)))
            done(outcome)
            return True
        if not self._tasks:
            return False
        run, done = self._tasks.pop(self._rng.randrange(len(self._tasks)))
        found: Any | Failure
        try:
            found = run()
        except (StoreError, OSError) as error:
            found = error
        self._outcomes.append((done, found))
        return True


class Race:
    """Random steps, and the answers about each message."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.ids: dict[bytes, str] = {}
        self.names: dict[bytes, bytes | None] = {}
        self.due: dict[bytes, int] = {}  # The earliest possible due time.
        self.asked: Counter[bytes] = Counter()  # Changes of due times without an answer.
        self.said: dict[bytes, TimerOutcome] = {}  # The final outcome that was answered.
        # Messages with a cancellation or replacement that had no answer when the broker was killed.
        self.maybe: set[bytes] = set()
        self.seen: set[bytes] = set()
        self.outcomes: Counter[TimerOutcome] = Counter()
        self.open(CrashDisk(), NOW)

    def open(self, disk: CrashDisk, now_ms: int) -> None:
        self.core = ManualCore(OPTIONS, disk, SMALL, now_ms)
        self.late = Late(self.rng)
        self.core.delays.timers.tree.context.executor = self.late
        self.topic = self.core.topic("orders", 1)

    def run(self, steps: int) -> None:
        weighted: list[tuple[Callable[[], object], int]] = [
            (self.add, 8), (self.cancel, 6), (self.move, 6), (self.cancel_named, 2), (self.work, 50), (self.turn, 40),
            (self.pass_time, 8), (self.step_clock, 1), (self.kill, 1), (self.look, 4),
            (self.pause_or_resume, 6),
        ]  # fmt: skip
        actions, weights = [action for action, _ in weighted], [weight for _, weight in weighted]
        for _ in range(steps):
            self.rng.choices(actions, weights)[0]()
        self.finish()

    def now_ms(self) -> int:
        return self.core.clock.now_ms()

    # -- Steps

    def add(self) -> None:
        now_ms = self.now_ms()
        body, name = b"%d" % len(self.ids), self.rng.choice((None, None, *KEYS))
        due_ms = now_ms + self.rng.randrange(1, self.rng.choice(SPANS))
        replaces = name is not None and self.rng.random() < 0.3
        if replaces:
            self.maybe |= {other for other, key in self.names.items() if key == name}
        record = Record(0, now_ms, name, body, [])
        timer_id, _ = self.core.publisher.publish_delayed(
            self.topic, 0, record, RequestedDelay(due_ms), now_ms, replaces=replaces
        )
        self.ids[body], self.due[body] = self.core.delays.commands.text_ids.text_of(timer_id), due_ms
        self.names[body] = name
        self.core.settle()

    def some_body(self) -> bytes | None:
        return self.rng.choice([*self.ids][-25:]) if self.ids else None

    def cancel(self) -> None:
        body = self.some_body()
        if body is not None:
            self.decide(body, lambda text: self.core.delays.commands.cancel(text, self.now_ms()), is_cancel=True)

    def move(self) -> None:
        body = self.some_body()
        if body is None:
            return
        due_ms = self.now_ms() + self.rng.randrange(-5, self.rng.choice(SPANS))
        if self.rng.random() < 0.3 and (given := self.core.delays.commands.text_ids.id_of(self.ids[body])):
            due_ms = given[0]  # Back to the first due time.
        self.due[body] = min(self.due[body], due_ms)
        self.asked[body] += 1

        def reschedule(text: str) -> Decision:
            decision = self.core.delays.commands.reschedule(text, due_ms, self.now_ms())
            self.asked[body] -= 1
            if decision.outcome is TimerOutcome.RESCHEDULED and not self.asked[body]:
                self.due[body] = due_ms
            return decision

        self.decide(body, reschedule, is_cancel=False)

    def decide(self, body: bytes, verb: Callable[[str], Decision], *, is_cancel: bool) -> None:
        """Run a command; its outcome must agree with earlier outcomes and with the queue."""
        core, text = self.core, self.ids[body]
        before = TimerOutcome.DELIVERED if body in self.look() else self.said.get(body)
        if is_cancel:
            self.maybe.add(body)

        def then(error: StoreError | None) -> None:
            assert error is None
            outcome = verb(text).outcome
            core.settle()
            self.outcomes[outcome] += 1
            if before is not None:
                assert outcome is before, f"{body!r} was {before} before it was asked"
            if outcome is TimerOutcome.RESCHEDULED:
                assert body not in self.look()
                return
            assert outcome is not TimerOutcome.NOT_FOUND
            assert (body in self.look()) == (outcome is TimerOutcome.DELIVERED), f"{body!r} is {outcome}"
            self.said[body] = outcome

        core.delays.commands.load(text, then)

    def cancel_named(self) -> None:
        name, core = self.rng.choice(KEYS), self.core
        self.maybe |= {body for body, key in self.names.items() if key == name}
        before = {body for body, key in self.names.items() if key == name} - self.look()

        def then(error: StoreError | None) -> None:
            assert error is None
            outcome = core.delays.commands.cancel_named(self.topic, name, self.now_ms()).outcome
            core.settle()
            self.maybe |= {body for body, key in self.names.items() if key == name}
            if outcome is TimerOutcome.CANCELLED:
                self.said |= dict.fromkeys(before - self.look(), TimerOutcome.CANCELLED)

        core.delays.commands.load_named(self.topic, name, then)

    def work(self) -> None:
        self.late.step()

    def turn(self) -> None:
        now_ms = self.now_ms()
        self.core.clock.pass_ms(self.rng.choice((0, 0, 100, 2_000)))
        self.core.clock.set_now_ms(now_ms)
        self.core.delays.timers.tree.run(now_ms, self.core.clock.mono_ms())
        self.core.delays.run(now_ms, self.core.clock.mono_ms())
        self.core.settle()
        self.look()

    def pass_time(self) -> None:
        self.core.clock.pass_ms(self.rng.randrange(1, 5_000))

    def pause_or_resume(self) -> None:
        delays = self.core.delays
        change = delays.resume if delays.is_paused(self.topic) else delays.pause
        change(self.topic, self.now_ms())
        self.core.settle()

    def step_clock(self) -> None:
        self.core.clock.set_now_ms(self.now_ms() + self.rng.choice((-30_000, 60_000)))

    def kill(self) -> None:
        """Kill the broker. Commands without an answer may or may not have had their effect."""
        self.asked.clear()
        self.open(self.core.disk.after_kill(), self.now_ms())

    # -- Invariants

    def look(self) -> set[bytes]:
        """Return the delivered messages: each once, not early, and none with an answered cancellation."""
        found = bodies(self.core, "orders")
        new = set(found) - self.seen
        assert len(found) == len(set(found)), "delivered twice"
        for body in new:
            assert self.due[body] <= self.now_ms(), f"{body!r} is early"
            assert self.said.get(body, TimerOutcome.DELIVERED) is TimerOutcome.DELIVERED, f"{body!r} was cancelled"
        self.seen |= new
        return set(found)

    def finish(self) -> None:
        """Deliver all pending messages; only those that were or may have been cancelled are missing."""
        while self.late.step():
            self.turn()
        self.core.delays.resume(self.topic, self.now_ms())
        self.core.clock.set_now_ms(FOREVER_MS)
        for _ in range(10_000):
            self.core.clock.pass_ms(NEAR_MS)
            self.turn()
            while self.late.step():
                pass
            if not len(self.core.delays.timers):
                break
        self.look()
        assert not set(self.ids) - self.seen - self.maybe, "lost"
        assert not {body for body, said in self.said.items() if said is TimerOutcome.DELIVERED} - self.seen


@pytest.fixture(autouse=True)
def _short_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small limits, so that much happens during each job, and all jobs run at once."""
    monkeypatch.setattr("duolog.delay.tree.cursors.READ_ROWS", 5)
    monkeypatch.setattr("duolog.delay.tree.flush_job.ROWS_IN_SLICE", 3)
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.TOMBSTONES_MIN", 3)
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.MARKED_IN_SLICE", 2)
    monkeypatch.setattr("duolog.delay.tables.compaction.COMPACTION_WIDTH", 2)


@pytest.mark.parametrize("seed", first_in_unit(range(3, 9), 3))
def test_outcomes_agree_with_deliveries(seed: int) -> None:
    race = Race(seed)
    race.run(500)
    assert race.outcomes[TimerOutcome.CANCELLED]
    assert race.outcomes[TimerOutcome.RESCHEDULED]
    assert race.outcomes[TimerOutcome.DELIVERED]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_outcomes_agree_with_deliveries_in_many_races(seed: int) -> None:
    Race(seed).run(2_000)
