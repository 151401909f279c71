"""Recurring messages on a real store: each run once whatever is cut, one schedule whoever asks. Keys, ActiveMQ's names.

A broker without its network is driven run by run; after each cut another one goes on with what the disk has.
"""

import pytest

from duolog.bridge.config import DelayOptions
from duolog.bridge.data.delayed.schedules import Outcome
from duolog.bridge.data.publishing.kafka_plan import REPLACING_RECORDS_MAX
from duolog.bridge.records import frame_formats
from duolog.bridge.state.topic_table import Topic
from duolog.delay.cancellations import TimerOutcome
from duolog.delay.recurring import (
    BadSchedule,
    Cron,
    Every,
    Missed,
    Schedule,
)
from duolog.delay.requested_delay import DelayRefused
from duolog.delay.schedules import RecurringMessage, TooManySchedules
from duolog.protocol.kafka import record_reader
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.record_batch import InvalidBatch, Reason, Record
from tests.kit.disk import CrashDisk, PowerCut
from tests.unit.bridge.batches import batch
from tests.unit.bridge.publish_bench import NOW, PublishBench, message, now

SECOND, MINUTE = 1_000, 60_000
EVERY_SECOND = Schedule(Every(SECOND), missed=Missed.ALL)


class Desk(PublishBench):
    """A broker whose time is moved, run by run."""

    def __init__(self, disk: CrashDisk | None = None, now_ms: int = NOW, **sections: object) -> None:
        super().__init__(disk, **sections)
        self.clock.set_now_ms(now_ms)

    def pass_until(self, now_ms: int) -> None:
        """Let everything be done that is due until then."""
        self.clock.set_now_ms(now_ms)
        for owner in (self.delays, self.schedules):
            while (deadline_ms := owner.next_deadline_ms()) is not None and deadline_ms <= now_ms:
                owner.run(now_ms, 0)
        self.settle()

    def times(self, topic: Topic) -> list[int]:
        """The timestamps of what lies in the topic, in order."""
        return [record.timestamp_ms for record in self.records(topic)]

    def records(self, topic: Topic) -> list[Record]:
        queue = topic.queues[0]
        found = self.store.reader.read(queue, 0, max_bytes=1 << 20, until=queue.visible_end)
        assert isinstance(found, list)
        assert all(stored.form == frame_formats.KAFKA for stored in found)
        return [record for stored in found for record in record_reader.records(stored.frame, 1 << 20)]

    def names(self) -> list[str]:
        return sorted(standing.name for standing in self.schedules.state.all())


def recurring(topic: Topic, value: bytes = b"tick") -> RecurringMessage:
    builder = BatchBuilder()
    builder.append(0, 0, b"key", value, [("a", b"b")])
    return RecurringMessage(topic.key(0), frame_formats.KAFKA, bytes(builder.finish(0, 0)))


def test_runs_come_at_their_times_with_their_times() -> None:
    desk = Desk()
    topic = desk.topic()
    made = desk.schedules.register("tick", Schedule(Every(SECOND), count=3), recurring(topic), NOW)
    assert made.outcome is Outcome.CREATED
    assert desk.schedules.next_deadline_ms() is not None
    desk.pass_until(NOW + SECOND - 1)
    assert desk.times(topic) == []
    for second in range(1, 6):
        desk.pass_until(NOW + second * SECOND + 7)
    assert desk.times(topic) == [NOW + second * SECOND for second in (1, 2, 3)]
    assert {(record.key, record.value, *record.headers) for record in desk.records(topic)} == {
        (b"key", b"tick", ("a", b"b"))
    }


def test_schedule_that_has_ended_keeps_the_number_of_its_runs_after_a_restart() -> None:
    desk = Desk()
    topic = desk.topic()
    desk.schedules.register("tick", Schedule(Every(SECOND), count=3, missed=Missed.ALL), recurring(topic), NOW)
    skipping = Schedule(Every(SECOND), until_ms=NOW + 5 * MINUTE, missed=Missed.SKIP)
    desk.schedules.register("skip", skipping, recurring(topic), NOW)
    desk.pass_until(NOW + SECOND)
    desk.pass_until(NOW + 10 * MINUTE)
    again = Desk(desk.disk.after_kill(), now_ms=NOW + 10 * MINUTE)
    for each in (desk, again):
        assert {found.name: (found.run, found.runs) for found in each.schedules.state.all()} == {
            "tick": (None, 3),
            "skip": (None, 1),
        }


def test_the_same_registered_ten_times_is_one_and_another_under_its_name_replaces_it() -> None:
    desk = Desk()
    topic = desk.topic()
    register = desk.schedules.register
    outcomes = [register("tick", EVERY_SECOND, recurring(topic), NOW + ms).outcome for ms in range(10)]
    assert outcomes == [Outcome.CREATED, *[Outcome.UNCHANGED] * 9]
    desk.pass_until(NOW + SECOND)
    assert desk.times(topic) == [NOW + SECOND]
    assert register("tick", EVERY_SECOND, recurring(topic, b"tock"), NOW + 1500).outcome is Outcome.REPLACED
    desk.pass_until(NOW + 2600)
    assert desk.times(topic) == [NOW + SECOND, NOW + 2500]
    ended = Schedule(Every(SECOND), count=1)
    assert register("once", ended, recurring(topic), NOW + 2600).outcome is Outcome.CREATED
    desk.pass_until(NOW + 3600)
    again = Desk(desk.disk.after_kill(), NOW + 3600)
    assert again.schedules.register("once", ended, recurring(topic), NOW + 3700).outcome is Outcome.UNCHANGED


def test_a_paused_topic_gets_what_it_missed_by_its_rule() -> None:
    desk = Desk()
    topics = {rule: desk.topic(rule.value) for rule in Missed}
    for rule, topic in topics.items():
        desk.schedules.register(rule.value, Schedule(Every(SECOND), missed=rule), recurring(topic), NOW)
        desk.delays.pause(topic, NOW)
    desk.pass_until(NOW + 5 * SECOND)
    desk = Desk(desk.disk.after_kill(), NOW + 5 * SECOND)
    desk.pass_until(NOW + 5 * SECOND)
    for rule in Missed:
        topic = topics[rule] = desk.topic(rule.value)
        assert desk.times(topic) == []
        desk.delays.resume(topic, NOW + 5 * SECOND)
    desk.pass_until(NOW + 5 * SECOND + 1)
    assert desk.times(topics[Missed.ALL]) == [NOW + second * SECOND for second in range(1, 6)]
    assert desk.times(topics[Missed.ONCE]) == desk.times(topics[Missed.SKIP]) == [NOW + 5 * SECOND]


def test_a_removed_schedule_and_one_whose_topic_is_gone_run_no_more() -> None:
    desk = Desk()
    topic, other = desk.topic(), desk.topic("other")
    desk.schedules.register("tick", EVERY_SECOND, recurring(topic), NOW)
    desk.schedules.register("tock", EVERY_SECOND, recurring(other), NOW)
    assert desk.schedules.remove("tick", NOW).outcome is Outcome.REMOVED
    assert desk.schedules.remove("tick", NOW).outcome is Outcome.NOT_FOUND
    desk.topics.delete(other, NOW)
    desk.pass_until(NOW + 5 * SECOND)
    assert (desk.times(topic), desk.names()) == ([], [])


def test_what_cannot_be_registered_is_refused() -> None:
    desk = Desk(delay=DelayOptions(schedules_max=1, schedules_bytes=1024))
    topic = desk.topic()
    for name, schedule in (("", EVERY_SECOND), ("n" * 256, EVERY_SECOND), ("past", Schedule(Every(1000), until_ms=5))):
        with pytest.raises(BadSchedule):
            desk.schedules.register(name, schedule, recurring(topic), NOW)
    with pytest.raises(TooManySchedules, match="schedules_bytes"):
        desk.schedules.register("large", EVERY_SECOND, recurring(topic, bytes(4096)), NOW)
    desk.schedules.register("one", EVERY_SECOND, recurring(topic), NOW)
    with pytest.raises(TooManySchedules, match="schedules_max"):
        desk.schedules.register("two", EVERY_SECOND, recurring(topic), NOW)
    replaced = desk.schedules.register("one", EVERY_SECOND, recurring(topic, bytes(700)), NOW)
    assert replaced.outcome is Outcome.REPLACED, "what it replaces makes room"
    assert desk.schedules.register("one", EVERY_SECOND, recurring(topic, bytes(800)), NOW).outcome is Outcome.REPLACED


def test_batch_that_would_pass_the_limit_registers_nothing() -> None:
    desk = Desk(delay=DelayOptions(schedules_max=3))
    topic = desk.topic()
    headers = [("AMQ_SCHEDULED_PERIOD", b"1000"), ("AMQ_SCHEDULED_REPEAT", b"1")]
    period = b"AMQ_SCHEDULED_PERIOD\x011000\x02AMQ_SCHEDULED_REPEAT\x011\x02"
    for count, fits in ((4, False), (2, True), (2, False), (1, True)):
        before = len(desk.schedules.state)
        sent = batch([b"x"] * count, headers=headers)
        if fits:
            desk.publisher.publish_batch(topic, 0, sent, NOW)
            continue
        with pytest.raises(TooManySchedules, match=r"delay\.schedules_max is 3"):
            desk.publisher.publish_batch(topic, 0, sent, NOW)
        with pytest.raises(TooManySchedules, match=r"delay\.schedules_max is 3"):
            desk.publisher.publish_messages(topic, 0, [message(properties=period) for _ in range(count)], NOW)
        assert len(desk.schedules.state) == before


# -- Power cuts


def history(desk: Desk) -> None:
    topic = desk.topic()
    desk.schedules.register("tick", Schedule(Every(SECOND), count=6, missed=Missed.ALL), recurring(topic), NOW)
    desk.settle()
    for second in range(1, 8):
        desk.pass_until(NOW + second * SECOND)


@pytest.mark.power_cut
def test_each_run_is_done_once_whatever_operation_the_power_is_cut_at() -> None:
    whole = CrashDisk()
    history(Desk(whole))
    expected = [NOW + second * SECOND for second in range(1, 7)]
    for cut_at in range(1, whole.operations + 1):
        disk = CrashDisk(cut_at=cut_at)
        with pytest.raises(PowerCut):
            history(Desk(disk))
        desk = Desk(disk.after_power_cut(seed=cut_at))
        topic = desk.topics.get("orders")
        if topic is not None and "tick" in desk.names():
            desk.pass_until(NOW + 9 * SECOND)
            assert desk.times(topic) == expected, f"cut at {cut_at}"


# -- What messages ask for by themselves


def kafka_batch(*headers: tuple[str, bytes], key: bytes | None = b"k", value: bytes = b"v") -> bytes:
    builder = BatchBuilder()
    builder.append(0, NOW, key, value, headers)
    return bytes(builder.finish(0, 0))


AMQ = {"AMQ_SCHEDULED_DELAY": "1000", "AMQ_SCHEDULED_PERIOD": "500", "AMQ_SCHEDULED_REPEAT": "2"}


def test_activemq_headers_of_kafka_and_properties_of_rocketmq_make_a_schedule() -> None:
    desk = Desk()
    topic = desk.topic()
    published = desk.kafka(topic, kafka_batch(*((name, text.encode()) for name, text in AMQ.items())))
    assert published.base_offset == -1
    raw = "".join(f"{name}\x01{text}\x02" for name, text in (AMQ | {"UNIQ_KEY": "u", "city": "Bern"}).items())
    desk.rocketmq(desk.topic("other"), message(b"body", raw.encode()))
    desk = Desk(desk.disk.after_kill())
    desk.pass_until(NOW + 999)
    topic, other = desk.topic(), desk.topic("other")
    assert desk.times(topic) == []
    for ms in range(1000, 4000, 250):
        desk.pass_until(NOW + ms)
    assert desk.times(topic) == [NOW + 1000, NOW + 1500, NOW + 2000]
    names = {name for record in desk.records(topic) for name, _ in record.headers}
    assert names == {"SCHEDULE_NAME", "__BORN_TIMESTAMP"}
    assert other.queues[0].visible_end == 3
    found = now(desk.reader.rocketmq(other.queues[0], other, 0, 32, 1 << 20, 3))
    assert b"city\x01Bern" in bytes(found.buffers[0])
    assert b"AMQ_SCHEDULED" not in b"".join(map(bytes, found.buffers))
    assert desk.names() == [], "they have ended"


def test_a_cron_entry_with_repeats_starts_a_series_each_time() -> None:
    desk = Desk()
    topic = desk.topic()
    asked = {"AMQ_SCHEDULED_CRON": b"*/20 * * * * *", "AMQ_SCHEDULED_DELAY": b"2000"}
    asked |= {"AMQ_SCHEDULED_PERIOD": b"1000", "AMQ_SCHEDULED_REPEAT": b"1"}
    desk.kafka(topic, kafka_batch(*asked.items()))
    first = Cron("*/20 * * * * *").next_ms(NOW)
    for ms in range(0, 25_000, 500):
        desk.pass_until(first + ms)
    assert desk.times(topic) == [first + ms for ms in (2000, 3000, 22_000, 23_000)]


def test_an_activemq_delay_alone_is_a_delay() -> None:
    desk = Desk()
    topic = desk.topic()
    desk.kafka(topic, kafka_batch(("AMQ_SCHEDULED_DELAY", b"1500")))
    assert (len(desk.delays.timers), len(desk.schedules.state)) == (1, 0)
    desk.pass_until(NOW + 1500)
    assert desk.times(topic) == [NOW + 1500]


@pytest.mark.parametrize(
    "headers",
    [
        {"AMQ_SCHEDULED_DELAY": b"soon"},
        {"AMQ_SCHEDULED_CRON": b"* * *"},
        {"AMQ_SCHEDULED_REPEAT": b"-1", "AMQ_SCHEDULED_CRON": b"* * * * *", "AMQ_SCHEDULED_PERIOD": b"1000"},
        {"AMQ_SCHEDULED_DELAY": b"999999999999"},
        {"AMQ_SCHEDULED_CRON": b"* * * * * *", "AMQ_SCHEDULED_DELAY": b"250000000000000"},
        {"AMQ_SCHEDULED_PERIOD": b"999999999999", "AMQ_SCHEDULED_REPEAT": b"2"},
    ],
)
def test_what_activemq_names_cannot_mean_is_refused(headers: dict[str, bytes]) -> None:
    desk = Desk()
    with pytest.raises(InvalidBatch, match="record 0 of the batch"):
        desk.kafka(desk.topic(), kafka_batch(*headers.items()))


# -- Keys

LATER = ("TIMER_DELAY_MS", b"5000")
REPLACE = ("TIMER_REPLACE", b"true")


def test_a_message_replaces_those_that_wait_with_its_key_if_it_asks_to() -> None:
    desk = Desk()
    topic, other = desk.topic(), desk.topic("other")
    for value in (b"1", b"2"):
        desk.kafka(topic, kafka_batch(LATER, value=value))
    desk.kafka(topic, kafka_batch(LATER, key=b"another", value=b"another"))
    desk.kafka(other, kafka_batch(LATER, value=b"other"))
    assert len(desk.delays.timers) == 4
    desk.kafka(topic, kafka_batch(LATER, REPLACE, value=b"3"))
    assert len(desk.delays.timers) == 3
    desk = Desk(desk.disk.after_kill())
    desk.rocketmq(other := desk.topic("other"), message(b"body", b"KEYS\x01k\x02TIMER_DELAY_MS\x015000\x02"))
    desk.rocketmq(
        other, message(b"body", b"KEYS\x01k\x02TIMER_DELAY_MS\x015000\x02TIMER_REPLACE\x01true\x02", queue_id=0)
    )
    desk.pass_until(NOW + 6000)
    assert [record.value for record in desk.records(desk.topic())] == [b"another", b"3"]
    assert other.queues[0].visible_end == 1


def test_within_one_batch_the_last_that_asks_to_replace_stays() -> None:
    desk = Desk()
    topic = desk.topic()
    builder = BatchBuilder()
    for number, headers in enumerate([(LATER,), (LATER, REPLACE), (LATER,), (LATER, REPLACE), (LATER,)]):
        builder.append(number, NOW, b"k" if number != 2 else b"else", b"%d" % number, headers)
    desk.kafka(topic, bytes(builder.finish(0, 0)))
    desk.pass_until(NOW + 6000)
    assert [record.value for record in desk.records(topic)] == [b"2", b"3", b"4"]


def test_a_batch_that_replaces_too_much_is_refused() -> None:
    """Each record of it is searched for in all tables, in the loop."""
    desk = Desk()
    topic = desk.topic()
    builder = BatchBuilder()
    for number in range(REPLACING_RECORDS_MAX + 1):
        builder.append(number, NOW, b"%d" % number, b"", [LATER, REPLACE])
    with pytest.raises(InvalidBatch) as refusal:
        desk.kafka(topic, bytes(builder.finish(0, 0)))
    assert refusal.value.reason is Reason.TOO_LARGE
    assert not len(desk.delays.timers)


def test_verbs_by_key_say_what_has_become_of_the_messages() -> None:
    desk = Desk()
    topic = desk.topic()

    for key in (b"a", b"a", b"b", b"c"):
        desk.kafka(topic, kafka_batch(LATER, key=key))
    assert desk.delays.commands.reschedule_named(topic, b"b", NOW + 9000, NOW).outcome is TimerOutcome.RESCHEDULED
    assert desk.delays.commands.cancel_named(topic, b"a", NOW).outcome is TimerOutcome.CANCELLED
    assert len(desk.delays.timers) == 2
    desk.settle()
    desk = Desk(desk.disk.after_kill())
    topic = desk.topic()
    desk.pass_until(NOW + 6000)
    assert [timer.due_ms for timer in desk.delays.commands.named(topic, b"b")] == [NOW + 9000]
    for key, expected in (
        (b"a", TimerOutcome.CANCELLED),
        (b"c", TimerOutcome.DELIVERED),
        (b"d", TimerOutcome.NOT_FOUND),
    ):
        assert desk.delays.commands.cancel_named(topic, key, NOW + 6000).outcome is expected
        assert desk.delays.commands.reschedule_named(topic, key, NOW + 9000, NOW + 6000).outcome is expected


def test_a_batch_of_messages_asks_for_few_schedules_or_none() -> None:
    desk = Desk(delay=DelayOptions(batch_schedules_max=3))
    topic = desk.topic()
    every_minute = b"AMQ_SCHEDULED_CRON\x01* * * * *\x02"
    desk.rocketmq(topic, *[message(properties=every_minute)] * 3)
    with pytest.raises(DelayRefused, match="batch of 4 messages with AMQ_SCHEDULED_ properties"):
        desk.rocketmq(topic, *[message(properties=every_minute)] * 4)
    assert len(desk.names()) == 1, "equal messages are one schedule"
