"""Delayed messages of both protocols are stored as pending, delivered once, in order and never early, and cancelled.

The store is a real one on a disk in memory; the tests move the clock.
"""

import pytest

from duolog.bridge.config import DelayOptions
from duolog.bridge.data.delayed.deliveries import DELIVERED_IN_SLICE, GATHER_MS
from duolog.bridge.data.publishing.produced_batches import REBUILT_RECORDS_MAX
from duolog.bridge.data.publishing.refusals import MessageTooLarge
from duolog.bridge.state.producers import OutOfOrderSequence
from duolog.bridge.state.topic_table import Topic
from duolog.delay.cancellations import TimerOutcome
from duolog.delay.requested_delay import DelayRefused
from duolog.delay.timers import TooManyTimers
from duolog.protocol.kafka import record_reader
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.compression import Codec
from duolog.protocol.kafka.record_batch import InvalidBatch, Reason, Record
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import properties as names
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.options import StoreOptions
from tests.unit.bridge.batches import batch
from tests.unit.bridge.publish_bench import NOW, PublishBench, message, now

CODECS = list(Codec)
YEAR_MS = 365 * 86_400_000


class Bench(PublishBench):
    """A broker without a network that delivers when the test calls `run_until`."""

    def run_until(self, now_ms: int) -> int:
        """Set the clock and deliver all that is due; return the number of slices."""
        self.clock.set_now_ms(now_ms)
        slices = 0
        while (deadline_ms := self.delays.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            self.delays.run(now_ms, self.clock.mono_ms())
            self.settle()
            slices += 1
            assert slices < 10_000, "it does not come to an end"
        return slices

    def restarted(self, now_ms: int | None = None) -> "Bench":
        """Return a broker that recovers from the disk after a kill, with its clock at `now_ms`."""
        disk = self.disk.after_kill()
        again = Bench(disk)
        again.clock.set_now_ms(self.clock.now_ms() if now_ms is None else now_ms)
        return again

    def bodies(self, topic: Topic, queue_id: int = 0) -> list[bytes]:
        """Return the bodies of all messages of a queue."""
        return [record.value for record in self.records(topic, queue_id)]

    def records(self, topic: Topic, queue_id: int = 0) -> list[Record]:
        queue = topic.queues[queue_id]
        found = now(self.reader.read_for_kafka(queue, topic, queue.start_offset, 1 << 30, queue.visible_end))
        return [record for frame in found for record in record_reader.records(frame, 1 << 24)]

    def messages(self, topic: Topic, queue_id: int = 0) -> list[Message]:
        queue = topic.queues[queue_id]
        found = now(
            self.reader.read_for_rocketmq(queue, topic, queue.start_offset, 1 << 20, 1 << 30, queue.visible_end)
        )
        return [rocketmq_message.decode(buffer) for buffer in found.buffers]

    def send(self, topic: Topic, body: bytes, properties: str, queue_id: int = 0) -> str:
        """Send one RocketMQ message; return the id of its timer."""
        one = message(body, f"UNIQ_KEY\x01U\x02{properties}".encode())
        slots, _ = self.publisher.publish_messages(topic, queue_id, [one], self.clock.now_ms())
        self.settle()
        due_ms = int(names.get(one.properties, names.TIMER_OUT_MS) or 0)
        return self.delays.commands.text_ids.text_of((due_ms, slots[0].position))


def deliver_at(ms: int) -> str:
    return f"TIMER_DELIVER_MS\x01{ms}\x02"


def mixed(
    *records: tuple[bytes, bytes | None], codec: Codec = Codec.NONE, producer: tuple[int, int, int] = (-1, -1, -1)
) -> bytes:
    """Return a batch of records with these values and values of TIMER_DELAY_MS."""
    builder = BatchBuilder()
    for number, (value, delay) in enumerate(records):
        headers = [("a", b"b")] + ([("TIMER_DELAY_MS", delay)] if delay is not None else [])
        builder.append(number, NOW - 1000 + number, b"key", value, headers)
    return builder.finish(0, -1, codec=codec, producer=producer)


# -- RocketMQ


def test_message_of_a_level_waits_in_its_queue_and_comes_as_it_was_sent() -> None:
    bench = Bench()
    topic = bench.topic()
    bench.send(topic, b"later", "TAGS\x01paid\x02DELAY\x013\x02TIMER_DELIVER_MS\x011\x02", queue_id=1)
    schedule = bench.topics.by_rocketmq_name("SCHEDULE_TOPIC_XXXX")
    (pending,) = bench.messages(schedule, 2)
    shown = names.parse(pending.properties)
    assert (pending.topic, shown["REAL_TOPIC"], shown["REAL_QID"], shown["DELAY"]) == (
        "SCHEDULE_TOPIC_XXXX", "orders", "1", "3",
    )  # fmt: skip
    bench.run_until(NOW + 9_999)
    assert bench.messages(topic, 1) == []
    bench.run_until(NOW + 10_000)
    (delivered,) = bench.messages(topic, 1)
    assert (delivered.topic, delivered.queue_id, delivered.born_ms, bytes(delivered.body)) == (
        "orders", 1, NOW, b"later",
    )  # fmt: skip
    assert names.parse(delivered.properties) == {
        "UNIQ_KEY": "U", "TAGS": "paid", "REAL_TOPIC": "orders", "REAL_QID": "1",
    }  # fmt: skip
    assert delivered.store_ms == NOW + 10_000
    assert len(bench.delays.timers) == 0


def test_message_of_a_chosen_time() -> None:
    bench = Bench()
    topic = bench.topic()
    bench.send(topic, b"later", "REAL_TOPIC\x01mine\x02" + deliver_at(NOW + 500))
    bench.run_until(NOW + 500)
    (delivered,) = bench.messages(topic)
    assert names.parse(delivered.properties) == {
        "UNIQ_KEY": "U", "TIMER_DELIVER_MS": str(NOW + 500), "TIMER_OUT_MS": str(NOW + 500),
        "TIMER_ENQUEUE_MS": str(NOW), "TIMER_DEQUEUE_MS": str(NOW + 500),
    }  # fmt: skip


DELAYS: dict[str, int | None] = {
    "DELAY\x011\x02": 1_000,
    "DELAY\x0199\x02": 7_200_000,
    "DELAY\x010\x02TIMER_DELAY_MS\x017\x02": 7,
    "DELAY\x01-1\x02": None,
    "DELAY\x012\x02TIMER_DELAY_MS\x017\x02": 5_000,
    "TIMER_DELAY_SEC\x012\x02TIMER_DELAY_MS\x017\x02TIMER_DELIVER_MS\x011\x02": 2_000,
    "TIMER_DELAY_MS\x017\x02TIMER_DELIVER_MS\x011\x02": 7,
    deliver_at(NOW + 9): 9,
    deliver_at(NOW): None,
    deliver_at(0): None,
    "TIMER_DELAY_MS\x01-5\x02": None,
    deliver_at(NOW + 10 * YEAR_MS): 10 * YEAR_MS,
}


@pytest.mark.parametrize(("properties", "delay_ms"), DELAYS.items())
def test_precedence_of_delay_properties(properties: str, delay_ms: int | None) -> None:
    bench = Bench()
    topic = bench.topic()
    bench.send(topic, b"x", properties)
    assert len(bench.messages(topic)) == (delay_ms is None)
    if delay_ms is not None:
        bench.run_until(NOW + delay_ms - 1)
        assert bench.messages(topic) == []
        bench.run_until(NOW + delay_ms)
        assert len(bench.messages(topic)) == 1


@pytest.mark.parametrize(
    "properties",
    ["DELAY\x01x\x02", "TIMER_DELAY_MS\x011e3\x02", deliver_at(NOW + 3651 * 86_400_000), deliver_at(10**30)],
)
def test_message_with_an_invalid_delay_is_refused_and_not_stored(properties: str) -> None:
    bench = Bench()
    topic = bench.topic()
    before = bench.store.next_position
    with pytest.raises(DelayRefused):
        bench.send(topic, b"x", properties)
    assert bench.store.next_position == before


def test_each_message_of_a_batch_has_its_own_time() -> None:
    bench = Bench()
    topic = bench.topic()
    sent = [message(b"%d" % n, b"DELAY\x01%d\x02" % n) for n in (2, 0, 1)]
    slots, _ = bench.rocketmq(topic, *sent)
    assert len(slots) == 3
    assert bench.bodies(topic) == [b"0"]
    bench.run_until(NOW + 5_000)
    assert bench.bodies(topic) == [b"0", b"1", b"2"]


# -- Kafka


@pytest.mark.parametrize("codec", CODECS)
def test_batch_is_parted_and_each_record_comes_at_its_time(codec: Codec) -> None:
    bench = Bench()
    topic = bench.topic()
    sent = mixed(
        (b"c", b"300"), (b"now", None), (b"a", (100).to_bytes(8, "big")), (b"also", None), (b"b", b"200"), codec=codec
    )
    published = bench.kafka(topic, sent)
    assert published.base_offset == -1
    assert bench.bodies(topic) == [b"now", b"also"]
    bench.run_until(NOW + 200)
    bench.run_until(NOW + 299)
    assert bench.bodies(topic) == [b"now", b"also", b"a", b"b"]
    bench.run_until(NOW + 300)
    last = bench.records(topic)[-1]
    assert last[1:4] == (NOW + 300, b"key", b"c")
    assert list(last.headers) == [
        ("a", b"b"),
        ("TIMER_DELAY_MS", b"300"),
        ("__BORN_TIMESTAMP", str(NOW - 1000).encode()),
    ]


def test_repeated_batch_with_delayed_records_is_answered_and_the_next_one_fits() -> None:
    bench = Bench()
    topic = bench.topic()
    sent = mixed((b"now", None), (b"later", b"100"), producer=(7, 0, 0))
    all_later = mixed((b"l1", b"100"), (b"l2", b"100"), producer=(7, 0, 2))
    for _ in range(2):
        assert bench.kafka(topic, sent).base_offset == -1
    for _ in range(2):
        assert bench.kafka(topic, all_later).base_offset == -1
    bench = bench.restarted()
    topic = bench.topic()
    assert bench.kafka(topic, all_later).base_offset == -1
    assert bench.kafka(topic, batch([b"next"], producer=(7, 0, 4))).base_offset == 1
    with pytest.raises(OutOfOrderSequence):
        bench.kafka(topic, batch([b"gap"], producer=(7, 0, 9)))
    bench.run_until(NOW + 100)
    assert bench.bodies(topic) == [b"now", b"next", b"later", b"l1", b"l2"]


@pytest.mark.parametrize("value", [None, b"", b"soon", b"12 ", b"\x00\x01", b"1" * 30, (1 << 62).to_bytes(8, "big")])
def test_header_that_cannot_be_granted_refuses_the_batch(value: bytes | None) -> None:
    bench = Bench()
    topic = bench.topic()
    before = bench.store.next_position
    with pytest.raises(InvalidBatch) as refused:
        bench.kafka(topic, batch([b"x"] * 3, headers=[("TIMER_DELAY_MS", value)]))
    assert [error.index for error in refused.value.record_errors] == [0, 1, 2]
    assert bench.store.next_position == before


def test_eight_digits_are_text_and_the_last_of_two_headers_counts() -> None:
    bench = Bench()
    topic = bench.topic()
    bench.kafka(topic, batch([b"x"], headers=[("TIMER_DELAY_MS", b"5"), ("TIMER_DELAY_MS", b"00001000")]))
    bench.run_until(NOW + 999)
    assert bench.bodies(topic) == []
    bench.run_until(NOW + 1_000)
    assert bench.bodies(topic) == [b"x"]


def test_batch_whose_times_have_passed_is_kept_as_it_is() -> None:
    bench = Bench()
    topic = bench.topic()
    sent = batch([b"a", b"b"], headers=[("TIMER_DELIVER_MS", b"1")], producer=(7, 0, 0))
    assert bench.kafka(topic, sent).base_offset == 0
    (stored,) = bench.store.reader.read(topic.queues[0], 0, max_bytes=1 << 20, until=2)
    assert bytes(stored.frame)[16:] == sent[16:]


def test_delayed_record_of_a_topic_with_log_append_time() -> None:
    bench = Bench()
    topic = bench.topic(message_timestamp_type="LogAppendTime")
    bench.kafka(topic, mixed((b"later", b"100")))
    bench.run_until(NOW + 250)
    assert [record.timestamp_ms for record in bench.records(topic)] == [NOW + 250]


def test_too_many_delayed_records_are_refused_as_too_large_so_that_clients_split_the_batch() -> None:
    bench = Bench()
    too_many = DelayOptions().batch_delayed_max + 1
    with pytest.raises(InvalidBatch) as refused:
        bench.kafka(bench.topic(), batch([b""] * too_many, headers=[("TIMER_DELAY_SEC", b"9")], codec=Codec.LZ4))
    assert refused.value.reason is Reason.TOO_LARGE


def test_large_batch_with_a_delayed_record_is_refused_as_too_large() -> None:
    """The records that are not delayed are written anew, in the loop."""
    bench = Bench()
    builder = BatchBuilder()
    for number in range(REBUILT_RECORDS_MAX + 1):
        builder.append(number, NOW, None, b"", [] if number else [("TIMER_DELAY_SEC", b"9")])
    with pytest.raises(InvalidBatch) as refused:
        bench.kafka(bench.topic(), bytes(builder.finish(0, -1)))
    assert refused.value.reason is Reason.TOO_LARGE


# -- Order and clock


def test_due_order_and_arrival_order_among_equals_in_both_protocols() -> None:
    bench = Bench()
    topic = bench.topic()
    bench.send(topic, b"4", deliver_at(NOW + 200))
    bench.kafka(topic, mixed((b"5", b"200"), (b"1", b"100")))
    bench.send(topic, b"2", deliver_at(NOW + 100))
    bench.kafka(topic, mixed((b"6", b"200"), (b"3", b"150")))
    bench.run_until(NOW + 100_000)
    assert bench.bodies(topic) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_clock_set_back_delays_and_set_forward_delivers() -> None:
    bench = Bench()
    topic = bench.topic()
    bench.send(topic, b"b", deliver_at(NOW + 1_000))
    bench.run_until(NOW - 50_000)
    bench.send(topic, b"a", "TIMER_DELAY_MS\x01500\x02")
    assert bench.bodies(topic) == []
    bench.run_until(NOW - 49_500)
    assert bench.bodies(topic) == [b"a"]
    bench.run_until(NOW + YEAR_MS)
    assert bench.bodies(topic) == [b"a", b"b"]


def test_what_is_due_just_after_a_delivery_is_gathered() -> None:
    """A delivery costs much the same for one message as for ten; nothing waits for longer than that, or is early."""
    bench = Bench()
    topic = bench.topic()
    for n in (10, 11, 12, 20):
        bench.send(topic, b"%d" % n, deliver_at(NOW + n))
    due_ms = []
    while (deadline_ms := bench.delays.next_deadline_ms()) is not None:
        bench.run_until(deadline_ms)
        due_ms.append((deadline_ms - NOW, len(bench.bodies(topic))))
    assert [due for due in due_ms if due[1]] == [(10, 1), (10 + GATHER_MS, 3), (20, 4)]


def test_clock_set_back_does_not_gather_until_it_is_there_again() -> None:
    bench = Bench()
    topic = bench.topic()
    bench.send(topic, b"first", deliver_at(NOW + 60_000))
    bench.run_until(NOW + 60_000)
    bench.clock.set_now_ms(NOW)
    bench.send(topic, b"second", deliver_at(NOW + 10))
    bench.run_until(NOW + 10)
    assert bench.bodies(topic) == [b"first", b"second"]


def test_many_are_delivered_in_slices_and_topics_take_turns() -> None:
    bench = Bench()
    loud, quiet = bench.topic("loud"), bench.topic("quiet")
    count = 3 * DELIVERED_IN_SLICE
    bench.kafka(loud, mixed(*[(b"%d" % n, b"100") for n in range(count)]))
    bench.kafka(quiet, mixed((b"q", b"100")))
    bench.clock.set_now_ms(NOW + 100)
    while not bench.bodies(loud):
        bench.delays.run(NOW + 100, 0)
        bench.settle()
    bench.delays.run(NOW + 100, 0)
    bench.settle()
    assert bench.bodies(quiet) == [b"q"]
    assert len(bench.bodies(loud)) <= 2 * DELIVERED_IN_SLICE
    bench.run_until(NOW + 100)
    assert bench.bodies(loud) == [b"%d" % n for n in range(count)]


def test_topics_that_are_due_together_are_delivered_in_one_unit() -> None:
    bench = Bench()
    topics = [bench.topic(f"topic-{number}") for number in range(20)]
    for topic in topics:
        bench.send(topic, topic.name.encode(), "TIMER_DELAY_MS\x01100\x02")
    deleted = topics.pop(3)
    bench.topics.delete(deleted, NOW)
    assert bench.run_until(NOW + 100) <= 2, "a slice, and what waited for the deleted topic"
    assert [bench.bodies(topic) for topic in topics] == [[topic.name.encode()] for topic in topics]
    assert len(bench.delays.timers) == 0


# -- Commands


def test_outcomes_are_what_happened_and_survive_a_restart() -> None:
    bench = Bench()
    topic = bench.topic()
    first = bench.send(topic, b"first", deliver_at(NOW + 100))
    second = bench.send(topic, b"second", deliver_at(NOW + 200))
    assert bench.delays.commands.cancel(second, NOW).outcome is TimerOutcome.CANCELLED
    bench.run_until(NOW + 300)
    assert bench.bodies(topic) == [b"first"]
    for each in (bench, bench.restarted()):
        assert each.delays.commands.cancel(first, NOW).outcome is TimerOutcome.DELIVERED
        assert each.delays.commands.cancel(second, NOW).outcome is TimerOutcome.CANCELLED
        assert each.delays.commands.reschedule(second, NOW + 900, NOW).outcome is TimerOutcome.CANCELLED
        for unknown in ("", "x" * 24, first[:-1] + ("A" if first[-1] != "A" else "B"), first + "=", "ä" * 24):
            assert each.delays.commands.cancel(unknown, NOW).outcome is TimerOutcome.NOT_FOUND


def test_outcome_waits_for_what_it_reports() -> None:
    bench = Bench()
    topic = bench.topic()
    timer = bench.send(topic, b"x", deliver_at(NOW + 100))
    bench.clock.set_now_ms(NOW + 100)
    while not topic.queues[0].end_offset:
        bench.delays.run(NOW + 100, 0)
    outcome, promise, _ = bench.delays.commands.cancel(timer, NOW + 100)
    assert outcome is TimerOutcome.DELIVERED
    assert not bench.store.kept(promise)
    bench.settle()
    assert bench.store.kept(promise)


@pytest.mark.parametrize("protocol", ["kafka", "rocketmq"])
def test_rescheduled_message_comes_at_its_new_time_under_its_old_id(protocol: str) -> None:
    bench = Bench()
    topic = bench.topic()
    if protocol == "kafka":
        bench.kafka(topic, mixed((b"x", b"100")))
        (position,) = [row[1] for row in bench.topics.by_rocketmq_name("rmq_sys_wheel_timer").queues[0].index.rows(0)]
        timer = bench.delays.commands.text_ids.text_of((NOW + 100, position))
    else:
        timer = bench.send(topic, b"x", deliver_at(NOW + 100))
    assert bench.delays.commands.reschedule(timer, NOW + 5_000, NOW).outcome is TimerOutcome.RESCHEDULED
    bench.settle()
    bench = bench.restarted()
    topic = bench.topic()
    bench.run_until(NOW + 4_999)
    assert bench.bodies(topic) == []
    assert bench.delays.commands.reschedule(timer, NOW + 6_000, NOW + 4_999).outcome is TimerOutcome.RESCHEDULED
    bench.run_until(NOW + 6_000)
    assert bench.bodies(topic) == [b"x"]
    if protocol == "kafka":
        assert bench.records(topic)[0].timestamp_ms == NOW + 6_000
    assert bench.delays.commands.cancel(timer, NOW + 6_000).outcome is TimerOutcome.DELIVERED


def test_message_that_is_rescheduled_to_now_does_not_wait() -> None:
    bench = Bench()
    topic = bench.topic()
    timer = bench.send(topic, b"x", deliver_at(NOW + YEAR_MS))
    assert bench.delays.commands.reschedule(timer, NOW, NOW).outcome is TimerOutcome.RESCHEDULED
    bench.run_until(NOW)
    assert bench.bodies(topic) == [b"x"]


def test_paused_topic_waits_over_a_restart_and_the_others_do_not() -> None:
    bench = Bench()
    held, free = bench.topic("held"), bench.topic("free")
    for topic in (held, free):
        bench.send(topic, b"x", deliver_at(NOW + 100))
    bench.delays.pause(held, NOW)
    bench.settle()
    bench = bench.restarted()
    held, free = bench.topic("held"), bench.topic("free")
    bench.run_until(NOW + 200)
    assert (bench.bodies(held), bench.bodies(free)) == ([], [b"x"])
    bench.delays.resume(held, NOW + 200)
    bench.run_until(NOW + 200)
    assert bench.bodies(held) == [b"x"]


def test_pending_message_can_be_viewed() -> None:
    bench = Bench()
    timer = bench.send(bench.topic(), b"x", deliver_at(NOW + 100), queue_id=1)
    seen: list = []
    bench.delays.commands.view(timer, seen.append)
    (view,) = seen
    assert (view.id, view.topic, view.queue_id, view.due_ms) == (timer, "orders", 1, NOW + 100)
    assert bytes(rocketmq_message.body_of(view.frame)) == b"x"
    bench.run_until(NOW + 100)
    bench.delays.commands.view(timer, seen.append)
    assert seen[1] is None


def test_deleted_topic_takes_its_messages_with_it_and_a_new_one_of_its_name_gets_none() -> None:
    bench = Bench()
    topic = bench.topic()
    timer = bench.send(topic, b"x", deliver_at(NOW + 100))
    bench.topics.delete(topic, NOW)
    again = bench.topic()
    bench.run_until(NOW + 200)
    assert bench.bodies(again) == []
    assert (len(bench.delays.timers), bench.metrics.timers["dropped"]) == (0, 1)
    assert bench.delays.commands.cancel(timer, NOW + 200).outcome is TimerOutcome.CANCELLED


def test_messages_of_a_deleted_topic_are_dropped_on_a_full_disk() -> None:
    bench = Bench()
    topic = bench.topic()
    bench.send(topic, b"x", deliver_at(NOW + YEAR_MS))
    bench.settle()
    bench.topics.delete(topic, NOW)
    bench.disk.used_bytes = bench.disk.total_bytes
    bench.store.check_disk()
    assert bench.store.refusal
    bench.run_until(NOW)
    assert (len(bench.delays.timers), bench.metrics.timers["dropped"]) == (0, 1)


@pytest.mark.parametrize("is_killed", [False, True])
def test_messages_of_a_deleted_topic_do_not_pin_the_log_until_they_are_due(is_killed: bool) -> None:
    bench = Bench()
    topic, other = bench.topic(), bench.topic("other")
    for n in range(30):
        bench.send(topic, b"x", deliver_at(NOW + YEAR_MS * (1 + n % 3) + n * 1000))
        bench.send(other, b"y", deliver_at(NOW + YEAR_MS * (1 + n % 3) + n * 1000))
    bench.topics.delete(topic, NOW)
    bench.settle()
    if is_killed:
        bench = bench.restarted()
    bench.run_until(NOW)
    assert len(bench.delays.timers) == 30
    assert len(bench.delays.timers) == bench.delays.timers.tree.lists.count(bench.topic("other").number) == 30
    assert bench.metrics.timers["dropped"] == 30


# -- Disk and restart


def test_what_fell_due_while_the_broker_was_down_comes_at_its_start_and_nothing_twice() -> None:
    bench = Bench()
    topic = bench.topic()
    for delay in (300, 100, 200):
        bench.send(topic, b"%d" % delay, deliver_at(NOW + delay))
    bench.run_until(NOW + 100)
    bench = bench.restarted(NOW + 1_000)
    topic = bench.topic()
    assert bench.bodies(topic) == [b"100"]
    bench.run_until(NOW + 1_000)
    assert bench.bodies(topic) == [b"100", b"200", b"300"]
    bench = bench.restarted(NOW + 2_000)
    bench.run_until(NOW + 2_000)
    assert bench.bodies(bench.topic()) == [b"100", b"200", b"300"]


def test_state_after_a_snapshot_is_what_it_was() -> None:
    bench = Bench()
    topic = bench.topic()
    timers = [bench.send(topic, b"%d" % n, deliver_at(NOW + 100 * n)) for n in range(1, 6)]
    bench.delays.commands.cancel(timers[0], NOW)
    bench.delays.commands.reschedule(timers[1], NOW + 700, NOW)
    bench.run_until(NOW + 300)
    bench.store.close(NOW)  # A checkpoint, so that the next start has nothing else.
    bench = bench.restarted()
    topic = bench.topic()
    assert bench.store.recovery.entries == 0
    assert bench.delays.commands.cancel(timers[0], NOW).outcome is TimerOutcome.CANCELLED
    bench.run_until(NOW + 500)
    bench.run_until(NOW + 699)
    assert bench.bodies(topic) == [b"3", b"4", b"5"]
    bench.run_until(NOW + 700)
    assert bench.bodies(topic) == [b"3", b"4", b"5", b"2"]


def test_message_that_is_not_in_memory_is_read_by_a_thread_and_may_be_cancelled_meanwhile() -> None:
    bench = Bench(store=StoreOptions(segment_bytes=1 << 20, tail_bytes=1 << 16))
    topic, other = bench.topic(), bench.topic("other")
    timers = [bench.send(topic, b"%d" % n, deliver_at(NOW + 100)) for n in range(3)]
    for _ in range(8):
        bench.publish(other, bytes(60_000))
    bench.disk.cached = False
    waiting: list = []
    bench.store.executors.readers = type(
        "Deferred", (), {"submit": lambda self, run, done: waiting.append((run, done))}
    )()
    bench.run_until(NOW + 100)
    assert bench.bodies(topic) == []
    assert bench.delays.commands.cancel(timers[1], NOW + 100).outcome is TimerOutcome.CANCELLED
    for run, done in waiting:
        done(run())
    bench.run_until(NOW + 100)
    bench.disk.cached = True
    assert bench.bodies(topic) == [b"0", b"2"]


def test_retention_keeps_what_is_pending() -> None:
    bench = Bench(store=StoreOptions(segment_bytes=1 << 16, reserve_bytes=0))
    topic = bench.topic()
    for n in range(3):
        for _ in range(40):
            bench.send(topic, bytes(1000), deliver_at(NOW + 100))
        bench.send(topic, b"far", deliver_at(NOW + 10_000 + n))
    bench.run_until(NOW + 100)
    queue = bench.topics.by_rocketmq_name("rmq_sys_wheel_timer").queues[0]
    first_kept = bench.delays.first_kept(queue)
    assert first_kept is not None
    assert first_kept <= 40
    bench.run_until(NOW + 20_000)
    assert bench.delays.first_kept(queue) is None
    assert bench.bodies(topic)[-3:] == [b"far"] * 3


def test_no_more_than_the_limit_wait() -> None:
    bench = Bench(delay=DelayOptions(pending_max=2))
    topic = bench.topic()
    for _ in range(2):
        bench.send(topic, b"x", deliver_at(NOW + 100))
    with pytest.raises(TooManyTimers):
        bench.send(topic, b"x", deliver_at(NOW + 100))
    bench.send(topic, b"now", "")


def test_properties_that_leave_no_room_for_what_delivery_adds_are_refused() -> None:
    bench = Bench()
    topic = bench.topic("t")
    for size, fits in ((32_580, True), (32_660, False)):
        one = message(b"x", b"K\x01" + b"v" * size + b"\x02" + deliver_at(NOW + 100).encode())
        if fits:
            bench.rocketmq(topic, one)
        else:
            with pytest.raises(MessageTooLarge):
                bench.rocketmq(topic, one)
    bench.run_until(NOW + 100)
    assert len(bench.messages(topic)) == 1
