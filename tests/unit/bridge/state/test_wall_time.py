"""Proves that a clock that jumps loses nothing: a whole core, jumps of an hour to ten years, and all that goes by time.

Everything that the ticker runs is run after each step, in its order. The core is also killed and started again while
the clock is wrong, and after it. What is expected is what would have been if the clock had always been right.
"""

import logging

import pytest

from duolog.bridge.config import DelayOptions, Options, RetentionOptions
from duolog.bridge.records import frame_formats
from duolog.bridge.rocketmq.pop.pop_checkpoints import CheckpointName, taken
from duolog.bridge.state.wall_time import WallTime
from duolog.delay.recurring import Cron, Every, Schedule
from duolog.delay.schedules import RecurringMessage
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.rocketmq.messages.message import Message
from duolog.txn.coordinator import Producer
from tests.kit.clock import START_NOW_MS as NOW
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
JUMPS = {"an hour": HOUR, "eight days": 8 * DAY, "ten years": 3650 * DAY}
RETENTION_MS = 30 * MINUTE  # less than any of the jumps
OPTIONS = Options(retention=RetentionOptions(check_interval_ms=1000), delay=DelayOptions(near_ms=MINUTE))


class Watched(ManualCore):
    """A core with a short retention and a short memtable."""

    def __init__(self, disk: CrashDisk | None = None, now_ms: int = NOW) -> None:
        super().__init__(OPTIONS, disk, now_ms=now_ms)

    def turn(self, passed_ms: int = 0) -> None:
        """Let some time pass, and do what is due."""
        self.pass_ms(passed_ms)
        self.pass_ms(0)

    def turns(self, count: int, each_ms: int) -> None:
        for _ in range(count):
            self.turn(each_ms)

    def jump(self, by_ms: int) -> None:
        self.clock.set_now_ms(self.clock.now_ms() + by_ms)
        self.turn()

    def restarted(self, off_ms: int = 0) -> "Watched":
        self.settle()
        return Watched(self.disk.after_kill(), self.clock.now_ms() + off_ms)

    def stored(self, topic: str = "orders") -> list[tuple[bytes, int]]:
        """The bodies in the topic's first queue that may be read, with their store times."""
        found = self.topics.get(topic)
        assert found is not None
        queue = found.queues[0]
        entries = self.store.reader.read(queue, queue.start_offset, max_bytes=1 << 20, until=queue.visible_end)
        assert isinstance(entries, list)
        return [(bytes(entry.frame)[-60:], entry.stored_ms) for entry in entries]

    def send(self, body: bytes, properties: bytes = b"") -> None:
        one = Message("", body, properties, born_ms=self.clock.now_ms())
        self.publisher.publish_messages(self.topic(retention_ms=str(RETENTION_MS)), 0, [one], self.clock.now_ms())
        self.settle()


@pytest.fixture(params=JUMPS.values(), ids=JUMPS)
def jump_ms(request: pytest.FixtureRequest) -> int:
    return int(request.param)


# -- Retention and store times


@pytest.mark.parametrize("wrong_for_ms", [0, 10 * MINUTE])
@pytest.mark.parametrize("restart", ["never", "while it is wrong", "afterwards", "it is right when it is back"])
def test_a_clock_that_is_ahead_for_a_while_deletes_nothing_and_leaves_no_trace(
    jump_ms: int, wrong_for_ms: int, restart: str, caplog: pytest.LogCaptureFixture
) -> None:
    core = Watched()
    core.send(b"before")
    with caplog.at_level(logging.WARNING, "state"):
        core.jump(jump_ms)
    assert [record.message.startswith("the clock jumped") for record in caplog.records] == [True]
    assert "expected=2023-11-14T22:13:20.000" in caplog.text
    core.send(b"meanwhile")
    core.turns(10, wrong_for_ms // 10)
    if restart == "while it is wrong":
        core = core.restarted()
        core.turns(3, 2 * SECOND)
    if restart == "it is right when it is back":
        core = core.restarted(-jump_ms)
    else:
        core.jump(-jump_ms)
    if restart == "afterwards":
        core = core.restarted()
    core.send(b"after")
    core.turns(3, SECOND)
    true_ms = core.clock.now_ms()
    assert true_ms < NOW + wrong_for_ms + MINUTE
    assert len(core.stored()) == 3
    assert true_ms - MINUTE < core.stored()[2][1] <= true_ms, "store times have recovered"
    # And all of it goes when its time has come: no earlier, not later.
    core.turns(3, RETENTION_MS // 3 - wrong_for_ms // 3 - 10 * SECOND)
    assert len(core.stored()) == 3
    is_doubted = restart not in ("never", "afterwards")  # For an hour, since nothing was stored in the last minutes.
    core.turns(4, HOUR if is_doubted else wrong_for_ms + 20 * SECOND)
    assert not core.stored()


def test_a_clock_that_stays_ahead_is_believed_after_a_day(jump_ms: int) -> None:
    core = Watched()
    core.send(b"before")
    core.jump(jump_ms)
    core.turns(23, 70 * SECOND)
    assert core.stored(), "and by the time that has passed in truth it has not expired"
    core.turns(24, HOUR)
    core.send(b"after")
    core.turns(2, MINUTE)
    assert len(core.stored()) == 1
    assert core.wall_time.ahead_ms == 0


@pytest.mark.parametrize("off_ms", [30 * DAY, 3650 * DAY])
def test_after_a_month_off_retention_waits_for_an_hour(off_ms: int) -> None:
    """A broker cannot distinguish a month without power from a wrong clock. Store times follow the clock."""
    core = Watched()
    core.send(b"before")
    core = core.restarted(off_ms)
    core.send(b"after")
    assert core.stored()[1][1] == core.clock.now_ms()
    core.turns(9, 100 * SECOND)
    core = core.restarted(2 * SECOND)
    core.turns(2, SECOND)
    assert len(core.stored()) == 2
    core.turns(2 * 24, HOUR)
    core.send(b"later")
    core.turns(2, 2 * SECOND)
    assert len(core.stored()) == 1


@pytest.mark.parametrize("followed_ms", [90 * SECOND, 30 * DAY])
def test_a_standby_that_takes_over_trusts_the_clock_by_which_it_has_copied_the_last_unit(
    followed_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    core = Watched()
    core.send(b"before")
    now_ms, mono_ms = core.clock.now_ms(), core.clock.mono_ms()
    wall_time = WallTime(core.state_log, OPTIONS.retention)
    wall_time.copied(core.store.appender.stored_ms, mono_ms)
    core.store.appender.recovered_ms = core.store.appender.stored_ms
    wall_time.begin(core.store.appender, now_ms + followed_ms, mono_ms + followed_ms)
    assert wall_time.careful_ms(now_ms + followed_ms, mono_ms + followed_ms) == now_ms + followed_ms
    assert not caplog.messages


@pytest.mark.parametrize(("steady_ms", "is_trusted"), [(2 * HOUR, True), (MINUTE, False)])
def test_a_standby_trusts_a_clock_that_has_not_jumped_while_it_followed_an_idle_owner(
    steady_ms: int, is_trusted: bool
) -> None:
    core = Watched()
    core.send(b"before")
    now_ms, mono_ms = core.clock.now_ms() + DAY, core.clock.mono_ms() + DAY
    wall_time = WallTime(core.state_log, OPTIONS.retention)
    wall_time.copied(core.store.appender.stored_ms, mono_ms)  # At the start of the standby, a day after the last unit.
    core.store.appender.recovered_ms = core.store.appender.stored_ms
    for passed_ms in (0, steady_ms):
        wall_time.observe(now_ms + passed_ms, mono_ms + passed_ms)
    now_ms, mono_ms = now_ms + steady_ms, mono_ms + steady_ms
    wall_time.begin(core.store.appender, now_ms, mono_ms)
    wall_time.observe(now_ms, mono_ms)
    assert (wall_time.careful_ms(now_ms, mono_ms) == now_ms) == is_trusted


def test_a_clock_that_begins_in_1970_and_hears_of_the_time_makes_nothing_old() -> None:
    core = Watched()
    core.topic(retention_ms=str(10 * DAY))
    core.send(b"before")
    core = core.restarted(-NOW + 1000)
    core.send(b"a")
    core.turns(3, HOUR)  # Long enough to be believed.
    core.send(b"b")
    assert core.stored()[2][1] == core.clock.now_ms()
    core.jump(NOW - 1000)
    core.send(b"c")
    core.turns(30, HOUR)  # And so is the right one.
    assert core.wall_time.ahead_ms == 0
    assert len(core.stored()) == 4
    core.turns(10, DAY)
    assert not core.stored()


def test_a_clock_that_is_slewed_or_stepped_by_seconds_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    core = Watched()
    for step_ms in (30 * SECOND, -20 * SECOND, 5 * SECOND, -SECOND):
        core.jump(step_ms)
        core.turns(60, MINUTE)
        assert core.wall_time.careful_ms(core.clock.now_ms(), core.clock.mono_ms()) == core.clock.now_ms()
    assert "clock" not in caplog.text
    assert core.wall_time.jumps == 0


# -- What waits for a time


def test_an_open_transaction_has_its_time_whatever_the_clock_does(jump_ms: int) -> None:
    core = Watched()
    key = core.topic().queues[0].key
    first, _ = core.transactions.init("first", MINUTE, None, core.clock.now_ms())
    second, _ = core.transactions.init("second", MINUTE, None, core.clock.now_ms())

    def begin(name: str, producer: Producer) -> None:
        core.transactions.add_queues(name, producer, [key], core.clock.now_ms())

    def open_ones() -> list[str]:
        return sorted(each.name for each in core.transactions.coordinator.open)

    begin("first", first)
    core.turn(30 * SECOND)
    core.jump(jump_ms)
    begin("second", second)
    core.turn(29 * SECOND)
    assert open_ones() == ["first", "second"]
    core.turn(2 * SECOND)
    assert open_ones() == ["second"]
    core.jump(-jump_ms)
    core = core.restarted()
    core.turn(20 * SECOND)
    assert open_ones() == ["second"]
    core.turn(MINUTE)
    assert open_ones() == []


def test_half_messages_are_checked_and_given_up_in_time(jump_ms: int) -> None:
    core = Watched()

    def prepare() -> None:
        core.halves.prepare(Message("", b"half", b"", born_ms=0), "payments", None, core.clock.now_ms())

    prepare()
    core.jump(jump_ms)
    prepare()
    core.turns(3, 10 * SECOND)
    assert len(core.halves.state) == 2
    core.jump(-jump_ms)
    for each in (core, core.restarted()):
        deadline_ms = each.halves.state.next_deadline_ms()
        assert deadline_ms is not None
        assert all(half.due_ms <= each.clock.now_ms() + 2 * MINUTE for half in each.halves.state.open())


def test_popped_messages_come_back_in_time(jump_ms: int) -> None:
    core = Watched()
    core.send(b"a")
    core.jump(jump_ms)
    topic = core.topics.get("orders")
    assert topic is not None
    name = CheckpointName("billing", topic.queues[0].key, 0, core.clock.now_ms())
    core.state_log.commit([taken(name, [0], core.clock.now_ms() + MINUTE, 1)], core.clock.now_ms())
    core.jump(-jump_ms)
    for each in (core, core.restarted()):
        deadline_ms = each.rocketmq_context.pop.checkpoints.next_deadline_ms()
        assert deadline_ms is not None
        assert deadline_ms <= each.clock.now_ms() + MINUTE


@pytest.mark.parametrize("plan", [Every(10 * SECOND), Every(10 * SECOND, NOW + 5 * SECOND), Cron("*/10 * * * * *")])
def test_schedules_go_on_when_the_clock_is_right_again(jump_ms: int, plan: Every | Cron) -> None:
    core = Watched()
    topic = core.topic("ticks", 1)
    builder = BatchBuilder()
    builder.append(0, 0, b"key", b"tick", [])
    message = RecurringMessage(topic.key(0), frame_formats.KAFKA, bytes(builder.finish(0, 0)))
    core.schedules.register("tick", Schedule(plan), message, core.clock.now_ms())
    core.turns(3, 10 * SECOND)
    core.jump(jump_ms)
    core.turns(3, 10 * SECOND)
    core.jump(-jump_ms)
    before = core.topics.get("ticks").queues[0].end_offset  # type: ignore[union-attr]
    core.turns(3, 10 * SECOND)
    core = core.restarted()
    core.turns(3, 10 * SECOND)
    assert 5 <= core.topics.get("ticks").queues[0].end_offset - before <= 7  # type: ignore[union-attr]


def test_timers_are_delivered_once_and_late_ones_go_to_tables_again(jump_ms: int) -> None:
    core = Watched()

    def delayed(body: bytes, by_ms: int) -> None:
        core.send(body, b"TIMER_DELIVER_MS\x01%d\x02" % (core.clock.now_ms() + by_ms))

    due = [10 * SECOND, 20 * MINUTE, jump_ms + HOUR, jump_ms + 30 * DAY]
    for number, by_ms in enumerate(due):
        if by_ms < 365 * DAY:
            delayed(b"early %d" % number, by_ms)
    core.turns(3, 31 * SECOND)
    core.jump(jump_ms)
    delayed(b"meanwhile", 10 * SECOND)
    core.turns(3, 31 * SECOND)
    core.jump(-jump_ms)
    delivered = len(core.stored())
    assert delivered == 3, "what came due by the wrong clock, at most"
    delayed(b"far", 30 * DAY)
    in_tables = len(core.delays.timers.tree)
    core.turns(4, 31 * SECOND)
    assert len(core.delays.timers.tree) > in_tables, "what is due late leaves memory"
    delayed(b"near", 5 * SECOND)
    core.turns(2, 5 * SECOND)
    assert len(core.stored()) == delivered + 1
    pending = len(core.delays.timers)
    core = core.restarted()
    assert len(core.delays.timers) == pending
    for _ in range(40):
        core.turn(DAY)
    left = 1 if any(by_ms > 40 * DAY for by_ms in due) else 0
    assert len(core.delays.timers) <= left + 1


def test_messages_do_not_expire_by_a_clock_that_is_ahead(jump_ms: int) -> None:
    core = Watched()
    core.send(b"EXPIRES", b"EXPIRE_AFTER_MS\x01%d\x02TIMER_DELIVER_MS\x01%d\x02" % (20 * MINUTE, NOW + 10 * MINUTE))
    core.topics.get("orders")
    core.jump(jump_ms)
    core.turns(2, SECOND)
    assert len(core.stored()) == 1, "it was delivered, and not dropped"
    now_ms, mono_ms = core.clock.now_ms(), core.clock.mono_ms()
    assert core.wall_time.careful_ms(now_ms, mono_ms) == now_ms - jump_ms
