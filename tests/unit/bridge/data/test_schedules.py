"""Recurring messages on a real store: each run is done once, also after power cuts; replacing; ActiveMQ's headers.

The tests move the clock of a broker without a network; after each power cut a new broker recovers from the disk.
"""

import pytest

from duolog.bridge.config import DelayOptions
from duolog.bridge.data.delayed.delay_headers import REPLACING_MAX
from duolog.bridge.data.delayed.schedules import ScheduleOutcome
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


class ScheduleBench(PublishBench):
    """A broker without a network whose clock the test moves."""

    def __init__(self, disk: CrashDisk | None = None, now_ms: int = NOW, **sections: object) -> None:
        super().__init__(disk, **sections)
        self.clock.set_now_ms(now_ms)

    def pass_until(self, now_ms: int) -> None:
        """Set the clock, and run all deliveries and schedules that are due by then."""
        self.clock.set_now_ms(now_ms)
        for owner in (self.delays, self.schedules):
            while (deadline_ms := owner.next_deadline_ms()) is not None and deadline_ms <= now_ms:
                owner.run(now_ms, 0)
        self.settle()

    def times(self, topic: Topic) -> list[int]:
        """Return the timestamps of the topic's records, in order."""
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


def test_runs_are_delivered_at_their_times_with_these_as_timestamps() -> None:
    bench = ScheduleBench()
    topic = bench.topic()
    made = bench.schedules.register("tick", Schedule(Every(SECOND), count=3), recurring(topic), NOW)
    assert made.outcome is ScheduleOutcome.CREATED
    assert bench.schedules.next_deadline_ms() is not None
    bench.pass_until(NOW + SECOND - 1)
    assert bench.times(topic) == []
    for second in range(1, 6):
        bench.pass_until(NOW + second * SECOND + 7)
    assert bench.times(topic) == [NOW + second * SECOND for second in (1, 2, 3)]
    assert {(record.key, record.value, *record.headers) for record in bench.records(topic)} == {
        (b"key", b"tick", ("a", b"b"))
    }


def test_schedule_that_has_ended_keeps_the_number_of_its_runs_after_a_restart() -> None:
    bench = ScheduleBench()
    topic = bench.topic()
    bench.schedules.register("tick", Schedule(Every(SECOND), count=3, missed=Missed.ALL), recurring(topic), NOW)
    skipping = Schedule(Every(SECOND), until_ms=NOW + 5 * MINUTE, missed=Missed.SKIP)
    bench.schedules.register("skip", skipping, recurring(topic), NOW)
    bench.pass_until(NOW + SECOND)
    bench.pass_until(NOW + 10 * MINUTE)
    again = ScheduleBench(bench.disk.after_kill(), now_ms=NOW + 10 * MINUTE)
    for each in (bench, again):
        assert {found.name: (found.run, found.runs) for found in each.schedules.state.all()} == {
            "tick": (None, 3),
            "skip": (None, 1),
        }


def test_registering_a_schedule_again_changes_nothing_and_another_with_its_name_replaces_it() -> None:
    bench = ScheduleBench()
    topic = bench.topic()
    register = bench.schedules.register
    outcomes = [register("tick", EVERY_SECOND, recurring(topic), NOW + ms).outcome for ms in range(10)]
    assert outcomes == [ScheduleOutcome.CREATED, *[ScheduleOutcome.UNCHANGED] * 9]
    bench.pass_until(NOW + SECOND)
    assert bench.times(topic) == [NOW + SECOND]
    assert register("tick", EVERY_SECOND, recurring(topic, b"tock"), NOW + 1500).outcome is ScheduleOutcome.REPLACED
    bench.pass_until(NOW + 2600)
    assert bench.times(topic) == [NOW + SECOND, NOW + 2500]
    ended = Schedule(Every(SECOND), count=1)
    assert register("once", ended, recurring(topic), NOW + 2600).outcome is ScheduleOutcome.CREATED
    bench.pass_until(NOW + 3600)
    again = ScheduleBench(bench.disk.after_kill(), NOW + 3600)
    assert again.schedules.register("once", ended, recurring(topic), NOW + 3700).outcome is ScheduleOutcome.UNCHANGED


def test_a_resumed_topic_gets_missed_runs_by_the_rule_of_the_schedule() -> None:
    bench = ScheduleBench()
    topics = {rule: bench.topic(rule.value) for rule in Missed}
    for rule, topic in topics.items():
        bench.schedules.register(rule.value, Schedule(Every(SECOND), missed=rule), recurring(topic), NOW)
        bench.delays.pause(topic, NOW)
    bench.pass_until(NOW + 5 * SECOND)
    bench = ScheduleBench(bench.disk.after_kill(), NOW + 5 * SECOND)
    bench.pass_until(NOW + 5 * SECOND)
    for rule in Missed:
        topic = topics[rule] = bench.topic(rule.value)
        assert bench.times(topic) == []
        bench.delays.resume(topic, NOW + 5 * SECOND)
    bench.pass_until(NOW + 5 * SECOND + 1)
    assert bench.times(topics[Missed.ALL]) == [NOW + second * SECOND for second in range(1, 6)]
    assert bench.times(topics[Missed.ONCE]) == bench.times(topics[Missed.SKIP]) == [NOW + 5 * SECOND]


def test_a_removed_schedule_and_one_of_a_deleted_topic_have_no_more_runs() -> None:
    bench = ScheduleBench()
    topic, other = bench.topic(), bench.topic("other")
    bench.schedules.register("tick", EVERY_SECOND, recurring(topic), NOW)
    bench.schedules.register("tock", EVERY_SECOND, recurring(other), NOW)
    assert bench.schedules.remove("tick", NOW).outcome is ScheduleOutcome.REMOVED
    assert bench.schedules.remove("tick", NOW).outcome is ScheduleOutcome.NOT_FOUND
    bench.topics.delete(other, NOW)
    bench.pass_until(NOW + 5 * SECOND)
    assert (bench.times(topic), bench.names()) == ([], [])


def test_invalid_schedules_and_those_over_a_limit_are_refused() -> None:
    bench = ScheduleBench(delay=DelayOptions(schedules_max=1, schedules_bytes=1024))
    topic = bench.topic()
    for name, schedule in (("", EVERY_SECOND), ("n" * 256, EVERY_SECOND), ("past", Schedule(Every(1000), until_ms=5))):
        with pytest.raises(BadSchedule):
            bench.schedules.register(name, schedule, recurring(topic), NOW)
    with pytest.raises(TooManySchedules, match="schedules_bytes"):
        bench.schedules.register("large", EVERY_SECOND, recurring(topic, bytes(4096)), NOW)
    bench.schedules.register("one", EVERY_SECOND, recurring(topic), NOW)
    with pytest.raises(TooManySchedules, match="schedules_max"):
        bench.schedules.register("two", EVERY_SECOND, recurring(topic), NOW)
    replaced = bench.schedules.register("one", EVERY_SECOND, recurring(topic, bytes(700)), NOW)
    assert replaced.outcome is ScheduleOutcome.REPLACED, "the replaced schedule frees its memory"
    assert (
        bench.schedules.register("one", EVERY_SECOND, recurring(topic, bytes(800)), NOW).outcome
        is ScheduleOutcome.REPLACED
    )


def test_batch_over_the_limit_of_schedules_registers_nothing() -> None:
    bench = ScheduleBench(delay=DelayOptions(schedules_max=3))
    topic = bench.topic()
    headers = [("AMQ_SCHEDULED_PERIOD", b"1000"), ("AMQ_SCHEDULED_REPEAT", b"1")]
    period = b"AMQ_SCHEDULED_PERIOD\x011000\x02AMQ_SCHEDULED_REPEAT\x011\x02"
    for count, fits in ((4, False), (2, True), (2, False), (1, True)):
        before = len(bench.schedules.state)
        sent = batch([b"x"] * count, headers=headers)
        if fits:
            bench.publisher.publish_batch(topic, 0, sent, NOW)
            continue
        with pytest.raises(TooManySchedules, match=r"delay\.schedules_max is 3"):
            bench.publisher.publish_batch(topic, 0, sent, NOW)
        with pytest.raises(TooManySchedules, match=r"delay\.schedules_max is 3"):
            bench.publisher.publish_messages(topic, 0, [message(properties=period) for _ in range(count)], NOW)
        assert len(bench.schedules.state) == before


# -- Power cuts


def history(bench: ScheduleBench) -> None:
    topic = bench.topic()
    bench.schedules.register("tick", Schedule(Every(SECOND), count=6, missed=Missed.ALL), recurring(topic), NOW)
    bench.settle()
    for second in range(1, 8):
        bench.pass_until(NOW + second * SECOND)


@pytest.mark.slow
def test_each_run_is_done_once_after_a_power_cut_at_any_operation() -> None:
    whole = CrashDisk()
    history(ScheduleBench(whole))
    expected = [NOW + second * SECOND for second in range(1, 7)]
    for cut_at in range(1, whole.operations + 1):
        disk = CrashDisk(cut_at=cut_at)
        with pytest.raises(PowerCut):
            history(ScheduleBench(disk))
        bench = ScheduleBench(disk.after_power_cut(seed=cut_at))
        topic = bench.topics.get("orders")
        if topic is not None and "tick" in bench.names():
            bench.pass_until(NOW + 9 * SECOND)
            assert bench.times(topic) == expected, f"cut at {cut_at}"


# -- Schedules in headers and properties


def kafka_batch(*headers: tuple[str, bytes], key: bytes | None = b"k", value: bytes = b"v") -> bytes:
    builder = BatchBuilder()
    builder.append(0, NOW, key, value, headers)
    return bytes(builder.finish(0, 0))


AMQ = {"AMQ_SCHEDULED_DELAY": "1000", "AMQ_SCHEDULED_PERIOD": "500", "AMQ_SCHEDULED_REPEAT": "2"}


def test_activemq_headers_of_kafka_and_properties_of_rocketmq_make_a_schedule() -> None:
    bench = ScheduleBench()
    topic = bench.topic()
    published = bench.kafka(topic, kafka_batch(*((name, text.encode()) for name, text in AMQ.items())))
    assert published.base_offset == -1
    raw = "".join(f"{name}\x01{text}\x02" for name, text in (AMQ | {"UNIQ_KEY": "u", "city": "Bern"}).items())
    bench.rocketmq(bench.topic("other"), message(b"body", raw.encode()))
    bench = ScheduleBench(bench.disk.after_kill())
    bench.pass_until(NOW + 999)
    topic, other = bench.topic(), bench.topic("other")
    assert bench.times(topic) == []
    for ms in range(1000, 4000, 250):
        bench.pass_until(NOW + ms)
    assert bench.times(topic) == [NOW + 1000, NOW + 1500, NOW + 2000]
    names = {name for record in bench.records(topic) for name, _ in record.headers}
    assert names == {"SCHEDULE_NAME", "__BORN_TIMESTAMP"}
    assert other.queues[0].visible_end == 3
    found = now(bench.reader.read_for_rocketmq(other.queues[0], other, 0, 32, 1 << 20, 3))
    assert b"city\x01Bern" in bytes(found.buffers[0])
    assert b"AMQ_SCHEDULED" not in b"".join(map(bytes, found.buffers))
    assert bench.names() == [], "they have ended"


def test_a_cron_entry_with_repeats_starts_a_series_each_time() -> None:
    bench = ScheduleBench()
    topic = bench.topic()
    headers = {"AMQ_SCHEDULED_CRON": b"*/20 * * * * *", "AMQ_SCHEDULED_DELAY": b"2000"}
    headers |= {"AMQ_SCHEDULED_PERIOD": b"1000", "AMQ_SCHEDULED_REPEAT": b"1"}
    bench.kafka(topic, kafka_batch(*headers.items()))
    first = Cron("*/20 * * * * *").next_ms(NOW)
    for ms in range(0, 25_000, 500):
        bench.pass_until(first + ms)
    assert bench.times(topic) == [first + ms for ms in (2000, 3000, 22_000, 23_000)]


def test_an_activemq_delay_alone_is_a_delay() -> None:
    bench = ScheduleBench()
    topic = bench.topic()
    bench.kafka(topic, kafka_batch(("AMQ_SCHEDULED_DELAY", b"1500")))
    assert (len(bench.delays.timers), len(bench.schedules.state)) == (1, 0)
    bench.pass_until(NOW + 1500)
    assert bench.times(topic) == [NOW + 1500]


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
def test_invalid_activemq_headers_are_refused(headers: dict[str, bytes]) -> None:
    bench = ScheduleBench()
    with pytest.raises(InvalidBatch, match="record 0 of the batch"):
        bench.kafka(bench.topic(), kafka_batch(*headers.items()))


# -- Keys

LATER = ("TIMER_DELAY_MS", b"5000")
REPLACE = ("TIMER_REPLACE", b"true")


def test_a_message_with_timer_replace_cancels_the_pending_ones_with_its_key() -> None:
    bench = ScheduleBench()
    topic, other = bench.topic(), bench.topic("other")
    for value in (b"1", b"2"):
        bench.kafka(topic, kafka_batch(LATER, value=value))
    bench.kafka(topic, kafka_batch(LATER, key=b"another", value=b"another"))
    bench.kafka(other, kafka_batch(LATER, value=b"other"))
    assert len(bench.delays.timers) == 4
    bench.kafka(topic, kafka_batch(LATER, REPLACE, value=b"3"))
    assert len(bench.delays.timers) == 3
    bench = ScheduleBench(bench.disk.after_kill())
    bench.rocketmq(other := bench.topic("other"), message(b"body", b"KEYS\x01k\x02TIMER_DELAY_MS\x015000\x02"))
    bench.rocketmq(
        other, message(b"body", b"KEYS\x01k\x02TIMER_DELAY_MS\x015000\x02TIMER_REPLACE\x01true\x02", queue_id=0)
    )
    bench.pass_until(NOW + 6000)
    assert [record.value for record in bench.records(bench.topic())] == [b"another", b"3"]
    assert other.queues[0].visible_end == 1


def test_within_one_batch_the_last_record_with_timer_replace_stays() -> None:
    bench = ScheduleBench()
    topic = bench.topic()
    builder = BatchBuilder()
    for number, headers in enumerate([(LATER,), (LATER, REPLACE), (LATER,), (LATER, REPLACE), (LATER,)]):
        builder.append(number, NOW, b"k" if number != 2 else b"else", b"%d" % number, headers)
    bench.kafka(topic, bytes(builder.finish(0, 0)))
    bench.pass_until(NOW + 6000)
    assert [record.value for record in bench.records(topic)] == [b"2", b"3", b"4"]


def test_a_batch_with_too_many_replacing_records_is_refused() -> None:
    """The broker looks up the key of each record in all sorted tables, within one turn of the loop."""
    bench = ScheduleBench()
    topic = bench.topic()
    builder = BatchBuilder()
    for number in range(REPLACING_MAX + 1):
        builder.append(number, NOW, b"%d" % number, b"", [LATER, REPLACE])
    with pytest.raises(InvalidBatch) as refusal:
        bench.kafka(topic, bytes(builder.finish(0, 0)))
    assert refusal.value.reason is Reason.TOO_LARGE
    assert not len(bench.delays.timers)


def test_commands_by_key_return_the_state_of_the_messages() -> None:
    bench = ScheduleBench()
    topic = bench.topic()

    for key in (b"a", b"a", b"b", b"c"):
        bench.kafka(topic, kafka_batch(LATER, key=key))
    assert bench.delays.commands.reschedule_named(topic, b"b", NOW + 9000, NOW).outcome is TimerOutcome.RESCHEDULED
    assert bench.delays.commands.cancel_named(topic, b"a", NOW).outcome is TimerOutcome.CANCELLED
    assert len(bench.delays.timers) == 2
    bench.settle()
    bench = ScheduleBench(bench.disk.after_kill())
    topic = bench.topic()
    bench.pass_until(NOW + 6000)
    assert [timer.due_ms for timer in bench.delays.commands.named(topic, b"b")] == [NOW + 9000]
    for key, expected in (
        (b"a", TimerOutcome.CANCELLED),
        (b"c", TimerOutcome.DELIVERED),
        (b"d", TimerOutcome.NOT_FOUND),
    ):
        assert bench.delays.commands.cancel_named(topic, key, NOW + 6000).outcome is expected
        assert bench.delays.commands.reschedule_named(topic, key, NOW + 9000, NOW + 6000).outcome is expected


def test_a_batch_with_too_many_schedules_is_refused() -> None:
    bench = ScheduleBench(delay=DelayOptions(batch_schedules_max=3))
    topic = bench.topic()
    every_minute = b"AMQ_SCHEDULED_CRON\x01* * * * *\x02"
    bench.rocketmq(topic, *[message(properties=every_minute)] * 3)
    with pytest.raises(DelayRefused, match="batch of 4 messages with AMQ_SCHEDULED_ properties"):
        bench.rocketmq(topic, *[message(properties=every_minute)] * 4)
    assert len(bench.names()) == 1, "equal messages are one schedule"
