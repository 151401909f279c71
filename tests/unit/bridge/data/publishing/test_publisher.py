"""Proves what the publisher takes, what it refuses, and that a refusal appends nothing, on a real store in memory."""

from collections.abc import Callable

import pytest

from duolog.bridge.config import (
    ConvertOptions,
    DelayOptions,
    RocketmqOptions,
    TopicsOptions,
)
from duolog.bridge.data.publishing.produced_batches import RECORDS_MAX, BatchOrigin
from duolog.bridge.data.publishing.refusals import MessageTooLarge, NotSupported, ProduceRefused
from duolog.bridge.data.reading.rocketmq_reader import place_of
from duolog.bridge.state.producers import OutOfOrderSequence
from duolog.protocol.kafka import batch_builder, record_batch, record_reader
from duolog.protocol.kafka.compression import Codec
from duolog.protocol.kafka.record_batch import InvalidBatch, Reason
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import message_id, tags
from duolog.protocol.rocketmq.messages.message import NO_HOST
from duolog.store.index.queue_index import ROW_SIZE
from duolog.store.log.entry_reader import RecordAddress
from tests.kit.batches import RECORD, SECOND, batch_of
from tests.kit.threads import ManualThreads
from tests.unit.bridge.batches import batch
from tests.unit.bridge.publish_bench import NOW, PublishBench, message, now

CODECS = list(Codec)


def stored(bench: PublishBench, topic) -> list:
    queue = topic.queues[0]
    return bench.store.reader.read(queue, 0, max_bytes=1 << 30, until=queue.visible_end)


# -- Kafka


@pytest.mark.parametrize("codec", CODECS)
def test_batch_is_kept_byte_for_byte_but_for_offset_and_epoch(codec: Codec) -> None:
    bench = PublishBench()
    topic = bench.topic()
    sent = batch([b"a", b"b"], codec=codec)
    assert bench.kafka(topic, sent).base_offset == 0
    assert bench.kafka(topic, sent).base_offset == 2
    second = stored(bench, topic)[1]
    assert (second.base_offset, second.count, second.timestamp_ms) == (2, 2, NOW + 1)
    assert bytes(second.frame)[16:] == sent[16:]
    assert record_batch.read_header(second.frame).base_offset == 2
    assert record_batch.read_header(second.frame).leader_epoch == 0


def test_log_append_time_is_stamped_and_signed() -> None:
    bench = PublishBench()
    topic = bench.topic(message_timestamp_type="LogAppendTime")
    published = bench.kafka(topic, batch([b"a"], timestamp_ms=5))
    assert published.log_append_ms == NOW
    (entry,) = stored(bench, topic)
    assert {record.timestamp_ms for record in record_reader.records(entry.frame, 1 << 20)} == {NOW}
    header = record_batch.read_header(entry.frame)
    assert header.crc == record_batch.crc32c(bytes(entry.frame[21:]))


def test_answer_waits_for_what_the_topic_promises() -> None:
    bench = PublishBench()
    for flush, durable in (("sync", True), ("async", False)):
        topic = bench.topic(flush, flush_mode=flush)
        published = bench.publisher.publish_batch(topic, 0, batch([b"a"]), NOW)
        assert published.promise.level == durable
        assert not bench.store.kept(published.promise)
        bench.store.write()
        assert bench.store.kept(published.promise) is not durable
        bench.settle()
        assert bench.store.kept(published.promise)


LATE = NOW + 3_600_001
REFUSED = {
    "too large": (batch([b"x" * 2000]), {"max_message_bytes": "1000"}, Reason.TOO_LARGE),
    "too far ahead": (batch([b"a"], timestamp_ms=LATE), {}, Reason.TIMESTAMP),
    "last one too far ahead": (batch([b"a", b"b"], timestamp_ms=LATE - 1), {}, Reason.TIMESTAMP),
    "too old": (batch([b"a"], timestamp_ms=NOW - 6), {"message_timestamp_before_max_ms": "5"}, Reason.TIMESTAMP),
    "no key": (batch([b"a", b"b"], keys=[b"k", None]), {"cleanup_policy": "compact"}, Reason.INVALID),
    "corrupt": (batch([b"a"])[:-1] + b"?", {}, Reason.CORRUPT),
    "empty": (b"", {}, Reason.NOT_ONE_BATCH),
}


@pytest.mark.parametrize(("sent", "configs", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_batch_is_not_appended(sent: bytes, configs: dict[str, str], reason: Reason) -> None:
    bench = PublishBench()
    topic = bench.topic(**configs)
    with pytest.raises(InvalidBatch) as refused:
        bench.kafka(topic, sent)
    assert refused.value.reason is reason
    assert topic.queues[0].end_offset == 0


UNREADABLE = {
    "nothing, 62 bytes": batch_of(b"", 1, 0, Codec.SNAPPY),
    "fewer records than it says": batch_of(RECORD, 2, 1, Codec.ZSTD),
    "more records than it says": batch_of(RECORD + SECOND, 1, 0, Codec.LZ4),
    "a record that is longer than it says": batch_of(b"\x0a\0\0\0\x01\x01\0", 1, 0, Codec.GZIP),
    "a record that is longer, uncompressed": batch_of(b"\x0a\0\0\0\x01\x01\0", 1, 0),
    "not the codec that it says": batch_of(RECORD, 1, 0, attributes=Codec.ZSTD),
}


@pytest.mark.parametrize("sent", UNREADABLE.values(), ids=UNREADABLE)
def test_batch_that_no_consumer_could_read_is_not_stored(sent: bytes) -> None:
    bench = PublishBench()
    topic = bench.topic(delay_headers="false")
    with pytest.raises(InvalidBatch) as refused:
        bench.kafka(topic, sent)
    assert refused.value.reason is Reason.INVALID
    assert topic.queues[0].end_offset == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("count", [1, 2, 9, 1000])
def test_every_record_of_every_batch_is_checked(count: int, codec: Codec) -> None:
    bench = PublishBench()
    for at in {0, count // 2, count - 1}:
        builder = batch_builder.BatchBuilder()
        for number in range(count):
            headers = b"\x02\0\x03" if number == at else b"\0"  # one header, with a value of -2 bytes
            builder.append_encoded(number, NOW, None, b"x" * 90, headers)
        with pytest.raises(InvalidBatch, match=f"record {at} of the batch: a header value of -2 bytes") as refused:
            bench.kafka(bench.topic(), bytes(builder.finish(0, -1, codec=codec)))
        assert [error.index for error in refused.value.record_errors] == [at]
    assert bench.topic().queues[0].end_offset == 0


def test_lying_batch_that_asks_for_a_delay_is_refused() -> None:
    bench = PublishBench()
    sent = bytearray(batch([b"TIMER_DELAY_MS"] * 9))
    sent[-1] = 2  # It has a header, and nothing follows.
    sent[17:21] = record_batch.crc32c(sent[21:]).to_bytes(4, "big")
    with pytest.raises(InvalidBatch):
        bench.kafka(bench.topic(), bytes(sent))


SENT: dict[str, Callable[[], bytes]] = {  # Made by the test, because each worker collects all of them.
    "an empty record": lambda: batch([None]),
    "10,000 empty records, zstd": lambda: batch([None] * 10_000, codec=Codec.ZSTD),
    "10,000 empty records": lambda: batch([None] * 10_000),
    "16 of 1 KiB": lambda: batch([bytes(1024)] * 16),
    "as many records as there may be, half a byte each": lambda: batch([b"x" * 20] * RECORDS_MAX, codec=Codec.ZSTD),
    "1 MiB of zeros": lambda: batch([bytes(1 << 20)], codec=Codec.LZ4),
}


@pytest.mark.parametrize("make", SENT.values(), ids=SENT)
def test_what_is_written_stays_in_proportion_to_what_was_sent(make: Callable[[], bytes]) -> None:
    sent = make()
    bench = PublishBench()
    threads = bench.store.executors.readers = ManualThreads()
    topic = bench.topic()
    before = bench.store.next_position
    bench.kafka(topic, sent)
    assert bench.store.next_position - before + ROW_SIZE <= 2 * len(sent) + 4096
    (entry,) = stored(bench, topic)
    place = place_of(topic, topic.queues[0], entry, NO_HOST)
    assert entry.position <= place.last_position < bench.store.next_position
    for position in (entry.position, min(entry.position + entry.count - 1, place.last_position)):
        found: list[RecordAddress] = []
        bench.store.reader.find_address(position, found.append)
        threads.run()
        assert [address.queue for address in found] == [topic.queues[0]]


def test_records_at_fault_are_named() -> None:
    bench = PublishBench()
    sent = batch([b"a", b"b", b"c"], keys=[None, b"k", None])
    with pytest.raises(InvalidBatch, match=r"record 0 of the batch \(and 1 more record\): no key") as refused:
        bench.kafka(bench.topic(cleanup_policy="compact"), sent)
    assert [error.index for error in refused.value.record_errors] == [0, 2]
    sent = batch([b"a", b"b", b"c"], timestamp_ms=NOW + 3_600_000 - 1)
    with pytest.raises(InvalidBatch) as refused:
        bench.kafka(bench.topic("other"), sent)
    assert [error.index for error in refused.value.record_errors] == [2]
    assert refused.value.reason is Reason.TIMESTAMP


def test_greatest_timestamp_of_a_header_is_corrected() -> None:
    bench = PublishBench()
    topic = bench.topic()
    sent = bytearray(batch([b"a", b"b"], codec=Codec.ZSTD))
    sent[35:43] = (5).to_bytes(8, "big")
    sent[17:21] = record_batch.crc32c(sent[21:]).to_bytes(4, "big")
    bench.kafka(topic, bytes(sent))
    (entry,) = stored(bench, topic)
    header = record_batch.check(bytes(8) + bytes(entry.frame[8:]))
    assert entry.timestamp_ms == header.max_timestamp == NOW + 1


def test_no_more_schedules_are_read_than_a_batch_may_have() -> None:
    """A batch of thousands costs no more than the limit, whatever its last records ask for."""
    bench = PublishBench(delay=DelayOptions(batch_schedules_max=3))
    builder = batch_builder.BatchBuilder()
    for number in range(5):
        builder.append(number, NOW, None, b"", [("AMQ_SCHEDULED_CRON", b"0 9 * * *" if number < 3 else b"never")])
    with pytest.raises(InvalidBatch) as refused:
        bench.kafka(bench.topic(), bytes(builder.finish(0, -1, codec=Codec.ZSTD)))
    assert refused.value.reason is Reason.TOO_LARGE


def test_batch_without_timestamps_is_stored_without_timestamps() -> None:
    bench = PublishBench()
    topic = bench.topic()
    published = bench.kafka(topic, batch([b"a"], timestamp_ms=-1))
    assert (published.base_offset, published.log_append_ms) == (0, -1)
    (entry,) = stored(bench, topic)
    assert (entry.count, entry.timestamp_ms) == (1, -1)
    (record,) = record_reader.records(entry.frame, 1 << 20)
    assert (record.value, record.timestamp_ms) == (b"a", -1)


def test_zstd_is_refused_before_produce_7() -> None:
    bench = PublishBench()
    origin = BatchOrigin(allows_zstd=False)
    with pytest.raises(InvalidBatch, match="Produce version 7"):
        bench.publisher.publish_batch(bench.topic(), 0, batch([b"a"], codec=Codec.ZSTD), NOW, origin)


@pytest.mark.parametrize("codec", CODECS)
def test_same_words_elsewhere_ask_for_nothing(codec: Codec) -> None:
    bench = PublishBench()
    sent = batch([b"TIMER_DELIVER_MS"], keys=[b"\x20TIMER_DELAY_MS"], headers=[("x", b"TIMER_DELAY_SEC")], codec=codec)
    assert bench.kafka(bench.topic(), sent).base_offset == 0


@pytest.mark.parametrize("value", [b"_", b"a_b" * 40, b"_" * 3000, b"TIMER_DE_" * 200, b"x" * 3000 + b"TIMER_DE"])
def test_delay_header_is_found_behind_any_number_of_underscores(value: bytes) -> None:
    bench = PublishBench()
    for name in ("TIMER_DELAY_MS", "TIMER_DELIVER_MS"):
        with pytest.raises(InvalidBatch, match="soon"):
            bench.kafka(bench.topic(name), batch([value] * 5, headers=[(name, b"soon")]))
    assert bench.kafka(bench.topic("none"), batch([value] * 5)).base_offset == 0


def test_topic_may_turn_the_look_for_delays_off() -> None:
    bench = PublishBench()
    sent = batch([b"a"], headers=[("TIMER_DELAY_MS", b"5000")])
    assert bench.kafka(bench.topic(delay_headers="false"), sent).base_offset == 0


def test_batch_that_inflates_to_more_than_the_limit_is_refused() -> None:
    bench = PublishBench(convert=ConvertOptions(inflate_bytes_max=1 << 20))
    with pytest.raises(InvalidBatch) as refused:
        bench.kafka(bench.topic(), batch([b"0" * (2 << 20)], codec=Codec.ZSTD))
    assert refused.value.reason is Reason.INVALID


def test_repeated_batch_is_answered_with_its_place_and_promise() -> None:
    bench = PublishBench()
    topic = bench.topic()
    sent = batch([b"a", b"b"], producer=(1, 0, 0))
    first = bench.publisher.publish_batch(topic, 0, sent, NOW)
    again = bench.publisher.publish_batch(topic, 0, sent, NOW)
    assert again.base_offset == first.base_offset
    assert topic.queues[0].end_offset == 2
    assert not bench.store.kept(again.promise)
    bench.settle()
    assert bench.store.kept(again.promise)


def test_repeats_are_known_after_a_restart() -> None:
    bench = PublishBench()
    topic = bench.topic()
    for sequence in range(3):
        bench.kafka(topic, batch([b"a"], producer=(1, 0, sequence)))
    bench = bench.restarted()
    topic = bench.topic()
    assert bench.kafka(topic, batch([b"a"], producer=(1, 0, 1))).base_offset == 1
    assert bench.kafka(topic, batch([b"a"], producer=(1, 0, 3))).base_offset == 3
    with pytest.raises(OutOfOrderSequence):
        bench.kafka(topic, batch([b"a"], producer=(1, 0, 9)))


def test_topic_of_the_broker_is_refused_to_both() -> None:
    bench = PublishBench()
    topic = bench.topic("TBW102")
    with pytest.raises(ProduceRefused):
        bench.kafka(topic, batch([b"a"]))
    with pytest.raises(ProduceRefused):
        bench.rocketmq(topic, message())


# -- RocketMQ


def test_message_carries_its_place() -> None:
    bench = PublishBench()
    topic = bench.topic("orders.eu")
    host = bench.publisher.messages.store_host = message_id.pack_host("10.1.2.3", 10911)
    bench.rocketmq(topic, message())
    (slot,), _ = bench.rocketmq(topic, message(b"second", b"TAGS\x01TagA\x02"))
    entry = stored(bench, topic)[1]
    found = rocketmq_message.decode(entry.frame)
    assert (found.topic, bytes(found.body), found.queue_id, found.queue_offset) == ("orders|eu", b"second", 0, 1)
    assert (found.physical_offset, found.store_ms, found.store_host) == (slot.position, slot.stored_ms, host)
    assert (entry.tags, entry.count, entry.timestamp_ms) == (tags.hash_code("TagA"), 1, NOW)


def test_batch_of_messages_is_one_unit_of_entries() -> None:
    bench = PublishBench()
    topic = bench.topic()
    slots, promise = bench.rocketmq(topic, *[message(b"%d" % n) for n in range(3)])
    assert [slot.base_offset for slot in slots] == [0, 1, 2]
    assert slots[-1].position < promise.end
    assert [bytes(rocketmq_message.body_of(entry.frame)) for entry in stored(bench, topic)] == [b"0", b"1", b"2"]


UNSUPPORTED = [
    b"A\x01b\x02TIMER_DEL_UNIQKEY\x01U\x02",
    b"TRAN_MSG\x01true\x02",
]
MEANINGLESS = [
    b"DELAY\x010\x02",
    b"TRAN_MSG\x01false\x02",
    b"NODELAY\x013\x02",
    b"x\x01DELAY\x02",
    b"DELAY\x01\x02",
    b"",
]


@pytest.mark.parametrize("properties", UNSUPPORTED)
def test_request_that_is_not_supported_is_refused(properties: bytes) -> None:
    bench = PublishBench()
    topic = bench.topic()
    with pytest.raises(NotSupported):
        bench.rocketmq(topic, message(), message(properties=properties))
    assert topic.queues[0].end_offset == 0


@pytest.mark.parametrize("properties", MEANINGLESS)
def test_property_that_asks_for_nothing_is_kept(properties: bytes) -> None:
    bench = PublishBench()
    topic = bench.topic()
    bench.rocketmq(topic, message(properties=properties))
    assert rocketmq_message.properties_of(stored(bench, topic)[0].frame) == properties


def test_message_too_large_is_refused() -> None:
    bench = PublishBench(rocketmq=RocketmqOptions(body_bytes_max=100))
    topic = bench.topic()
    bench.rocketmq(topic, message(b"x" * 100))
    for sent in (message(b"x" * 101), message(properties=b"a\x01" + b"x" * 32767)):
        with pytest.raises(MessageTooLarge):
            bench.rocketmq(topic, sent)
    assert topic.queues[0].end_offset == 1


def test_batch_above_the_size_that_applies_to_topics_without_one_of_their_own_is_refused() -> None:
    bench = PublishBench(topics=TopicsOptions(message_bytes_max=2048))
    topic = bench.topic()
    bench.kafka(topic, batch([bytes(1900)]))
    with pytest.raises(InvalidBatch) as refused:
        bench.kafka(topic, batch([bytes(2048)]))
    assert refused.value.reason is Reason.TOO_LARGE
    assert topic.queues[0].end_offset == 1


def test_after_an_unclean_end_only_queues_under_async_get_a_new_epoch() -> None:
    bench = PublishBench()
    for name in ("sync", "async"):
        bench.kafka(bench.topic(name, flush_mode=name), batch([b"a", b"b"]))
    bench = bench.restarted()
    kept, lost = bench.topic("sync"), bench.topic("async")
    epoch = bench.store.epoch
    assert (kept.leader_epoch(0), lost.leader_epoch(0), lost.leader_epoch(1)) == (0, epoch, epoch)
    bench.kafka(lost, batch([b"c"]))
    assert [record_batch.read_header(entry.frame).leader_epoch for entry in stored(bench, lost)] == [0, epoch]
    assert [lost.epoch_end(0, each) for each in (0, epoch, epoch + 1)] == [(0, 2), (epoch, 3), (-1, -1)]
    assert now(bench.reader.read_for_kafka(lost.queues[0], lost, 0, 1 << 20, 3))


def test_leader_epoch_that_readers_have_seen_does_not_begin_again_after_a_power_cut() -> None:
    class Unsynced(PublishBench):
        """A broker whose power is cut before anything is synced that does not delay the start."""

        def _sync(self) -> None:
            pass

    bench = PublishBench()
    bench.kafka(bench.topic(flush_mode="async"), batch([b"kept"]))
    bench = Unsynced(bench.disk.after_kill())
    bench.kafka(bench.topic(), batch([b"shown"]))
    shown = record_batch.read_header(stored(bench, bench.topic())[-1].frame).leader_epoch
    for seed in range(8):
        assert PublishBench(bench.disk.after_power_cut(seed)).topic().leader_epoch(0) > shown > 0
