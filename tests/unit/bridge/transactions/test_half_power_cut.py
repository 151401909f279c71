"""Proves that no half message is lost and none decided twice: a long history of sends, verdicts, looks, retention and
restarts, the power cut at every file operation of it.

At each operation the disk is taken as it might be found afterwards and a broker's core is opened on it. There each
half message is open, or has one op message; a committed one lies in its queue once, any other nowhere; what was
answered before the cut is kept. Then all but the segments is deleted, and the same state must come from the log alone.
"""

from collections import Counter
from random import Random
from typing import Any, NamedTuple

import pytest

from duolog.bridge.config import Options, TxnOptions
from duolog.bridge.data.publishing.rocketmq_plan import HalfMessageOutline
from duolog.bridge.data.units import NOTHING, UnitPlan
from duolog.bridge.rocketmq.producing.check_backs import check_back_loop
from duolog.bridge.transactions.check_callbacks import CheckCallbacks
from duolog.bridge.transactions.half_properties import half_properties, sent_properties
from duolog.bridge.transactions.op_messages import HalfDecision
from duolog.protocol.rocketmq.messages import message
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.options import StoreOptions
from duolog.txn.half_verdicts import HalfVerdict
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk, EachCut
from tests.kit.slices import finished

OPTIONS = Options(txn=TxnOptions(immunity_ms=40, check_interval_ms=30, check_max=2))
STORE = StoreOptions(segment_bytes=24_000, reserve_bytes=4096, checkpoint_bytes=20_000, open_segments_max=4)
STEPS = 560
HALF, OP, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"


class Seen(NamedTuple):
    """What a log says about its half messages, by their number, which is their body and their offset."""

    open: dict[int, int]  # number -> checks
    verdicts: dict[int, int]  # of those whose op message is still there
    committed: Counter[int]
    given_up: Counter[int]
    end: int


class History:
    def __init__(self, seed: int, disk: EachCut) -> None:
        self.rng, self.disk = Random(seed), disk
        self.sent: set[int] = set()  # answered
        self.answered: dict[int, HalfVerdict] = {}
        self.removed = 0
        self.open(disk)

    def open(self, disk: CrashDisk) -> None:
        now_ms = self.core.clock.now_ms() if hasattr(self, "core") else 0
        self.core = ManualCore(OPTIONS, disk, STORE)
        self.core.clock.pass_ms(max(0, now_ms - self.core.clock.now_ms()))
        self.core.is_stalled = True
        self.checks = check_back_loop(self.core.rocketmq_context, self.core.half_decisions, CheckCallbacks(1000, print))
        self.core.topic("orders", 2)

    def run(self) -> None:
        steps = [
            (self.send, 34), (self.decide, 22), (self.look, 8), (self.write, 10), (self.settle, 12),
            (self.retain, 8), (self.checkpoint, 3), (self.restart, 0.7), (self.kill, 0.7),
        ]  # fmt: skip
        for _ in range(STEPS):
            self.core.clock.pass_ms(self.rng.randrange(8))
            self.rng.choices([step for step, _ in steps], [weight for _, weight in steps])[0]()
        self.settle()

    # -- Steps

    def send(self) -> None:
        number = self.core.halves.half_queue.end_offset
        raw = "PGROUP\x01shop\x02"
        immunity_s = self.rng.choice((None, None, 0, 1))
        if immunity_s is not None:
            raw += f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{immunity_s}\x02"
        own, now_ms = half_properties(raw.encode(), "", "orders", number % 2), self.core.clock.now_ms()
        one = Message("", str(number).encode() + bytes(600), own, born_ms=now_ms)
        immunity_ms = None if immunity_s is None else immunity_s * 1000
        promise = self.core.halves.prepare(one, "shop", immunity_ms, self.core.clock.now_ms()).promise
        self.core.store.when(promise, lambda error: self.sent.add(number))

    def decide(self) -> None:
        """Decide one, or some at once, as they come by one read of a socket."""
        core, still_open = self.core, [half.offset for half in self.core.halves.state.open()]
        now_ms, decided = core.clock.now_ms(), dict[int, HalfVerdict]()
        for number in self.rng.sample(still_open[-6:], min(len(still_open), self.rng.choice((1, 1, 1, 2, 3)))):
            verdict = decided[number] = self.rng.choice((HalfVerdict.COMMITTED, HalfVerdict.ROLLED_BACK))
            assert core.halves.judge(number, verdict, now_ms)
            plan = self.final(number, now_ms) if verdict is HalfVerdict.COMMITTED else NOTHING
            core.halves.gather(number, HalfDecision(verdict, "orders", 0, plan), now_ms)
        if decided:
            core.halves.append_gathered(now_ms)
            core.store.when(core.state_log.barrier(), lambda error: self.answered.update(decided))

    def final(self, number: int, now_ms: int) -> UnitPlan:
        core, topic = self.core, self.core.topics.get("orders")
        half = bytes(core.halves.read(number).frame)  # type: ignore[union-attr]
        outline = message.outline_of(half)
        raw = sent_properties(half[outline[3] :])[0]
        assert topic is not None
        committed = HalfMessageOutline(half, *outline[:3], raw)
        return core.publisher.messages.plan_committed(topic, number % 2, committed, now_ms)

    def look(self) -> None:
        now_ms = self.core.clock.now_ms()
        if (due_ms := self.checks.next_deadline_ms()) is not None and due_ms <= now_ms:
            self.checks.run(now_ms, self.core.clock.mono_ms())

    def write(self) -> None:
        self.core.store.write()

    def settle(self) -> None:
        self.core.settle()

    def retain(self) -> None:
        """Trim the half queue as far as it may go, the op queue to what it says about what is left, remove segments."""
        core, now_ms = self.core, self.core.clock.now_ms()
        queue = core.halves.half_queue
        first_kept = core.halves.first_kept(queue)
        start_offset = min(queue.visible_end, queue.end_offset if first_kept is None else first_kept)
        core.store.retention.trim(queue, start_offset, now_ms)
        for name in (OP, GIVEN_UP, "orders"):
            for other in core.topics.get(name).queues:  # type: ignore[union-attr]
                core.store.retention.trim(other, max(other.start_offset, other.visible_end - 20), now_ms)
        self.removed += finished(core.store.retention.remove_dead_segments())
        if core.store.checkpoint_due(now_ms):
            core.store.checkpoint(now_ms)

    def checkpoint(self) -> None:
        self.core.store.checkpoint(self.core.clock.now_ms())

    def restart(self) -> None:
        before = seen_in(self.core)
        self.core.store.close(self.core.clock.now_ms())
        self.open(self.disk)
        assert seen_in(self.core)[:4] == before[:4]

    def kill(self) -> None:
        survived = self.disk.after_kill()
        self.disk._root, self.disk._open, self.disk._locks = survived._root, {}, {}
        self.open(self.disk)

    # -- What should be there

    def check(self, disk: CrashDisk) -> None:
        core = ManualCore(OPTIONS, disk, STORE)
        seen = seen_in(core)
        queue = core.halves.half_queue
        for number in range(queue.start_offset, queue.end_offset):
            assert number not in seen.open or number not in seen.verdicts, f"{number} is decided and open"
        for number in self.sent:
            assert number < queue.end_offset, f"half message {number} was lost"
        for number, verdict in self.answered.items():
            assert number not in seen.open, f"the verdict of {number} was lost"
            assert seen.verdicts.get(number, verdict) == verdict
        whole = core.topics.get("orders").queues if core.topics.get("orders") else []  # type: ignore[union-attr]
        is_whole = not any(each.start_offset for each in whole)
        for number, verdict in seen.verdicts.items():
            if is_whole:
                assert seen.committed[number] == (verdict == HalfVerdict.COMMITTED), f"{number} was decided by halves"
        assert not seen.committed.keys() & seen.open.keys()
        assert set(seen.committed.values()) | set(seen.given_up.values()) <= {1}, "decided twice"
        state = full_state(core)
        core.store._files.close(core.store._lock)
        for path in disk.paths():
            if not path.startswith("log/"):
                disk.remove(path)
        assert full_state(ManualCore(OPTIONS, disk, STORE)) == state


def full_state(core: ManualCore) -> Any:
    return list(core.halves.state.open()), core.halves.state.verdicts()


def seen_in(core: ManualCore) -> Seen:
    state = core.halves.state
    verdicts = {}
    for each in stored(core, OP):
        for number in map(int, bytes(message.body_of(each.frame))[:-1].split(b",")):
            assert number not in verdicts, f"{number} has two op messages"
            verdicts[number] = 0
            try:
                state.judge(number, HalfVerdict.COMMITTED)
                verdicts[number] = HalfVerdict.COMMITTED
            except Exception as error:  # noqa: BLE001 - whichever it is, it says the verdict
                verdicts[number] = getattr(error, "verdict", 0)
    committed = Counter(number_of(each) for each in stored(core, "orders"))
    given_up = Counter(number_of(each) for each in stored(core, GIVEN_UP))
    return Seen({half.offset: half.checks for half in state.open()}, verdicts, committed, given_up, core.store.durable)


def stored(core: ManualCore, name: str) -> list[Any]:
    found: list[Any] = []
    topic = core.topics.get(name)
    for queue in topic.queues if topic is not None else ():
        offset = queue.start_offset
        while offset < queue.end_offset:
            some = core.store.reader.read(queue, offset, max_bytes=1 << 20, until=queue.end_offset)
            assert isinstance(some, list)
            found += some
            offset = some[-1].next_offset
    return found


def number_of(each: Any) -> int:
    return int(bytes(message.body_of(each.frame)).rstrip(b"\0"))


def cut_at_each(seed: int, stride: int = 1, phase: int = 0, cut_seed: int = 0) -> None:
    disk = EachCut(stride, cut_seed, phase)
    history = History(seed, disk)
    disk.check = history.check
    history.run()
    assert disk.operations > 500
    assert history.removed > 1, "segments were to be removed on the way"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "stride"), [(0, 4), (1, 5)])
def test_power_cut_between_half_and_op_loses_none_and_decides_none_twice(seed: int, stride: int, rng: Random) -> None:
    cut_at_each(seed, stride, rng.randrange(stride))


@pytest.mark.soak
@pytest.mark.parametrize("cut_seed", range(2))
@pytest.mark.parametrize("seed", range(12))
def test_power_cut_at_each_operation_of_many_histories(seed: int, cut_seed: int) -> None:
    cut_at_each(seed, cut_seed=cut_seed)
