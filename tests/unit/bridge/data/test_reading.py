"""Proves that a queue reads the same through both protocols: any mix of writers, any offset, any limit, hot or cold."""

import logging
from random import Random
from typing import Any

import pytest

from duolog.bridge.config import ConvertOptions
from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import INFLATED_BYTES_MAX
from duolog.protocol.kafka import record_reader
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.compression import Codec, deflate
from duolog.protocol.rocketmq.filters.subscription_filter import filter_of
from duolog.protocol.rocketmq.messages import flags, properties
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.store.errors import OffsetOutOfRange
from duolog.store.options import StoreOptions
from duolog.store.unit import Frame
from tests.kit.batches import batch_of
from tests.kit.threads import ManualThreads
from tests.unit.bridge.batches import batch
from tests.unit.bridge.publish_bench import NOW, PublishBench, message, now

COLD = StoreOptions(tail_bytes=1, segment_bytes=1 << 20)


def mixed(bench: PublishBench, seed: int, count: int = 40):
    """A queue with records of both protocols; the value of each record is its offset."""
    random, topic = Random(seed), bench.topic()
    end = 0
    while end < count:
        size = random.randrange(1, 6)
        values = [b"%d" % offset for offset in range(end, end + size)]
        if random.random() < 0.5:
            bench.kafka(topic, batch(values, keys=values, codec=random.choice(list(Codec)), timestamp_ms=NOW + end))
        else:
            bench.rocketmq(topic, *[message(v, b"KEYS\x01%b\x02" % v, sys_flag=0) for v in values], now_ms=NOW + end)
        end += size
    return topic, topic.queues[0]


def read_kafka(bench: PublishBench, topic, offset: int, max_bytes: int = 1 << 20, until: int | None = None) -> list:
    queue = topic.queues[0]
    buffers = now(
        bench.reader.read_for_kafka(queue, topic, offset, max_bytes, queue.visible_end if until is None else until)
    )
    return [record for buffer in buffers for record in record_reader.records(buffer, 1 << 20)]


def read_rocketmq(
    bench: PublishBench, topic, offset: int, max_count: int = 32, max_bytes: int = 1 << 20, wanted=None
) -> tuple:
    queue = topic.queues[0]
    found = now(bench.reader.read_for_rocketmq(queue, topic, offset, max_count, max_bytes, queue.visible_end, wanted))
    return [rocketmq_message.decode(buffer) for buffer in found.buffers], found.next_offset


# -- All of a queue, by both


@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_kafka_reads_every_record_from_every_offset(seed: int, is_cold: bool) -> None:
    bench = PublishBench(store=COLD) if is_cold else PublishBench()
    topic, queue = mixed(bench, seed)
    bench.disk.cached = not is_cold
    for offset in range(queue.visible_end):
        found = [record for record in read_kafka(bench, topic, offset) if record.offset >= offset]
        assert [(record.offset, record.key, record.value) for record in found] == [
            (at, b"%d" % at, b"%d" % at) for at in range(offset, queue.visible_end)
        ]


@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize("max_count", [1, 3, 32])
@pytest.mark.parametrize("seed", range(2))
def test_rocketmq_reads_every_record_from_every_offset(seed: int, max_count: int, is_cold: bool) -> None:
    bench = PublishBench(store=COLD) if is_cold else PublishBench()
    topic, queue = mixed(bench, seed)
    bench.disk.cached = not is_cold
    seen = set()
    for start in range(0, queue.visible_end, 3):
        offset = start
        while offset < queue.visible_end:
            found, next_offset = read_rocketmq(bench, topic, offset, max_count)
            assert 0 < len(found) <= max_count
            assert [at.queue_offset for at in found] == list(range(offset, next_offset))
            for at in found:
                assert at.body == b"%d" % at.queue_offset
                assert properties.get(at.properties, "KEYS") == str(at.queue_offset)
                seen.add((at.queue_offset, at.physical_offset))
            offset = next_offset
    assert len(seen) == queue.visible_end, "an offset has one message id, whatever pull it came with"
    assert len({position for _, position in seen}) == len(seen)


def test_same_protocol_reads_the_frames_themselves() -> None:
    bench = PublishBench()
    topic = bench.topic()
    bench.kafka(topic, batch([b"a", b"b"], codec=Codec.LZ4))
    bench.rocketmq(topic, message(b"c"))
    queue = topic.queues[0]
    first, second = bench.store.reader.read(queue, 0, max_bytes=1 << 20, until=3)
    assert bench.reader.read_for_kafka(queue, topic, 1, 1 << 20, 3)[0] is not None
    assert bytes(bench.reader.read_for_kafka(queue, topic, 1, 1 << 20, 3)[0]) == bytes(first.frame)
    assert bytes(bench.reader.read_for_rocketmq(queue, topic, 2, 1, 1 << 20, 3).buffers[0]) == bytes(second.frame)
    assert bench.metrics.converted_records == {"kafka": 2, "rocketmq": 0}


# -- Limits


def test_first_batch_comes_however_large() -> None:
    bench = PublishBench()
    topic = bench.topic()
    bench.rocketmq(topic, *[message(b"x" * 1000) for _ in range(5)])
    bench.kafka(topic, batch([b"y" * 1000]))
    assert len(read_kafka(bench, topic, 0, max_bytes=1)) == 1
    assert len(read_kafka(bench, topic, 5, max_bytes=1)) == 1
    assert len(read_rocketmq(bench, topic, 0, max_bytes=1)[0]) == 1
    assert len(read_rocketmq(bench, topic, 5, max_bytes=1)[0]) == 1


def test_bodies_that_inflate_stay_within_the_limit() -> None:
    bench = PublishBench()
    topic = bench.topic()
    body = deflate(Codec.ZSTD, b"0" * 10_000)
    flag = flags.COMPRESSED | flags.COMPRESSION_ZSTD
    bench.rocketmq(topic, *[message(body, sys_flag=flag) for _ in range(20)])
    assert [len(record.value) for record in read_kafka(bench, topic, 0, max_bytes=35_000)] == [10_000] * 3


def test_end_is_where_the_caller_says() -> None:
    bench = PublishBench()
    topic = bench.topic()
    bench.kafka(topic, batch([b"a"]))
    bench.kafka(topic, batch([b"b"]))
    queue = topic.queues[0]
    assert [record.offset for record in read_kafka(bench, topic, 0, until=1)] == [0]
    assert read_kafka(bench, topic, 2) == []
    assert bench.reader.read_for_rocketmq(queue, topic, 2, 32, 1 << 20, 2) == ([], 2)
    for read in (
        bench.reader.read_for_kafka,
        lambda *where: bench.reader.read_for_rocketmq(*where[:3], 32, *where[3:]),
    ):
        with pytest.raises(OffsetOutOfRange):
            read(queue, topic, 3, 1 << 20, 2)


# -- Filters


@pytest.mark.parametrize("expression", [("TAG", "A"), ("SQL92", "TAGS = 'A'")])
def test_only_what_is_wanted_comes_and_the_offset_goes_on(expression: tuple[str, str]) -> None:
    bench = PublishBench()
    topic = bench.topic()
    for tag in (b"A", b"B", None, b"A"):
        named = b"TAGS\x01%b\x02" % tag if tag else b"x\x01y\x02"
        bench.rocketmq(topic, message(properties=named))
        bench.kafka(topic, batch([b"v"], headers=[("TAGS", tag)]))
    wanted = filter_of(*expression)
    found, next_offset = read_rocketmq(bench, topic, 0, wanted=wanted)
    assert ([at.queue_offset for at in found], next_offset) == ([0, 1, 6, 7], 8)
    assert read_rocketmq(bench, topic, 2, wanted=filter_of("TAG", "C")) == ([], 8)
    found, next_offset = read_rocketmq(bench, topic, 0, max_count=3, wanted=wanted)
    assert ([at.queue_offset for at in found], next_offset) == ([0, 1, 6], 7)


@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize("limits", [{"max_count": 2}, {"max_bytes": 1}, {"max_bytes": 300}, {}])
@pytest.mark.parametrize("expression", [("TAG", "A || B"), ("SQL92", "TAGS IN ('A', 'B') AND TAGS IS NOT NULL")])
@pytest.mark.parametrize("seed", range(3))
def test_reader_that_goes_on_gets_all_that_is_wanted_once(
    seed: int, expression: tuple[str, str], limits: dict[str, int], is_cold: bool
) -> None:
    bench, random = (PublishBench(store=COLD) if is_cold else PublishBench()), Random(seed)
    topic, expected = bench.topic(), []
    while (end := topic.queues[0].visible_end) < 60:
        tag = random.choice([b"A", b"B", b"C", b"Aa", b"BB"])
        if random.random() < 0.3:
            bench.kafka(topic, batch([b"v"] * 5, headers=[("TAGS", tag)], codec=Codec.GZIP))
        else:
            bench.rocketmq(topic, message(b"m", b"TAGS\x01%b\x02" % tag))
        expected += range(end, topic.queues[0].visible_end) if tag in (b"A", b"B") else []
    bench.disk.cached = not is_cold
    wanted, offset, seen = filter_of(*expression), 0, []
    while offset < topic.queues[0].visible_end:
        found, next_offset = read_rocketmq(bench, topic, offset, wanted=wanted, **limits)
        assert next_offset > offset, "a pull that finds nothing goes on"
        seen += [at.queue_offset for at in found]
        offset = next_offset
    assert seen == expected


def test_two_tags_with_one_hash_are_distinguished() -> None:
    bench = PublishBench()
    topic = bench.topic()
    for tag in (b"Aa", b"BB"):
        bench.rocketmq(topic, message(properties=b"TAGS\x01%b\x02" % tag))
        bench.kafka(topic, batch([b"v"], headers=[("TAGS", tag)]))
    assert filter_of("TAG", "Aa").codes == filter_of("TAG", "BB").codes
    found, next_offset = read_rocketmq(bench, topic, 0, wanted=filter_of("TAG", "BB"))
    assert ([at.queue_offset for at in found], next_offset) == ([2, 3], 4)


@pytest.mark.slow
def test_frames_without_the_tag_are_not_read() -> None:
    bench = PublishBench(store=COLD)
    topic = bench.topic()
    for number in range(5000):
        bench.rocketmq(topic, message(properties=b"TAGS\x01%s\x02" % (b"rare" if number == 4500 else b"often")))
    reads = []
    bench.store.reader._frames.cached = lambda rows, cached=bench.store.reader._frames.cached: (
        reads.append(len(rows)) or cached(rows)
    )
    first, next_offset = read_rocketmq(bench, topic, 0, wanted=filter_of("TAG", "rare"))
    assert (first, next_offset, reads) == ([], 4096, [])
    found, next_offset = read_rocketmq(bench, topic, next_offset, wanted=filter_of("TAG", "rare"))
    assert ([at.queue_offset for at in found], next_offset, reads) == ([4500], 5000, [1])


# -- Open batches


def test_large_batch_is_inflated_once_for_many_pulls() -> None:
    bench = PublishBench(convert=ConvertOptions(cache_bytes=0))
    topic = bench.topic()
    bench.kafka(topic, batch([b"%d" % at for at in range(1000)], codec=Codec.ZSTD))
    opened = bench.reader._rocketmq._opened
    for start in (0, 500, 3, 999):
        offset = start
        while offset < 1000:
            found, offset = read_rocketmq(bench, topic, offset)
            assert [at.body for at in found] == [b"%d" % at.queue_offset for at in found]
    assert len(opened._opened) == 1
    assert all(len(held.marks) <= 64 for held in opened._opened.values())


def test_pull_from_the_end_of_a_large_batch_reads_no_record_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = PublishBench()
    topic = bench.topic()
    bench.kafka(topic, batch([b"x"] * 5000))
    counts: list[int] = []
    read = record_reader.read_records

    def counted(opened: Any, mark: Any, count: int) -> Any:
        counts.append(count)
        return read(opened, mark, count)

    monkeypatch.setattr(record_reader, "read_records", counted)
    for offset in (4990, 17, 4990, 2500):
        found, _ = read_rocketmq(bench, topic, offset, max_count=4)
        assert [at.queue_offset for at in found] == [*range(offset, offset + 4)]
    assert counts == [4] * 4


def test_open_batches_stay_within_their_limit() -> None:
    bench = PublishBench(convert=ConvertOptions(cache_bytes=5000))
    topic = bench.topic()
    for _ in range(20):
        bench.kafka(topic, batch([b"x" * 1000]))
    read_rocketmq(bench, topic, 0)
    opened = bench.reader._rocketmq._opened
    assert opened._bytes == sum(len(held.batch.body) for held in opened._opened.values()) <= 5000
    assert len(opened._opened) == 4


# -- What cannot be converted


def lying_batch(count: int) -> bytes:
    """Return a batch with a valid header and CRC whose last record claims more bytes than the batch has."""
    body = bytearray(batch([b"a"] * count)[61:])
    body[-5] = 100
    builder = BatchBuilder()
    builder._parts, builder._count, builder._last_offset_delta = [bytes(body)], count, count - 1
    return bytes(builder.finish(0, -1))


def test_faulty_batch_is_passed_over_from_the_fault_on(caplog: pytest.LogCaptureFixture) -> None:
    bench = PublishBench()
    topic = bench.topic()
    bench.kafka(topic, batch([b"before"]))
    bench.store_unchecked(topic, lying_batch(4))
    bench.rocketmq(topic, message(b"after"))
    offset, bodies = 0, []
    with caplog.at_level(logging.WARNING, "data"):
        while offset < 6:
            found, next_offset = read_rocketmq(bench, topic, offset)
            bodies += [at.body for at in found]
            assert next_offset > offset
            offset = next_offset
    assert bodies == [b"before", b"a", b"a", b"a", b"after"]
    assert "from=4 to=5" in caplog.text


def test_batch_that_does_not_inflate_is_passed_over() -> None:
    bench = PublishBench(convert=ConvertOptions(inflate_bytes_max=1 << 20))
    topic = bench.topic()
    bench.store_unchecked(topic, batch([b"0" * (2 << 20)], codec=Codec.ZSTD))
    bench.rocketmq(topic, message(b"after"))
    assert read_rocketmq(bench, topic, 0) == ([], 1)  # It cost enough for one read.
    found, next_offset = read_rocketmq(bench, topic, 1)
    assert ([at.body for at in found], next_offset) == ([b"after"], 2)


@pytest.mark.parametrize("expression", [(None, None), ("TAG", "wanted"), ("SQL92", "a > 1")])
def test_a_read_opens_no_more_than_so_many_bytes(expression: tuple[str | None, str | None]) -> None:
    """Batches of some hundred bytes that hold four megabytes each, of which nothing may be wanted."""
    bench = PublishBench()
    topic = bench.topic()
    sent = batch([bytes(INFLATED_BYTES_MAX // 2)], codec=Codec.ZSTD)
    for _ in range(8):
        bench.kafka(topic, sent)
    wanted = filter_of(*expression)
    offset, reads = 0, 0
    while offset < 8:
        found = now(bench.reader.read_for_rocketmq(topic.queues[0], topic, offset, 32, 64 << 20, 8, wanted))
        assert 1 <= found.next_offset - offset <= 2
        offset, reads = found.next_offset, reads + 1
    assert reads >= 4


@pytest.mark.parametrize("count", [1, 3])
def test_batch_that_inflates_to_nothing_is_passed_over(count: int) -> None:
    bench = PublishBench()
    topic = bench.topic()
    bench.store_unchecked(topic, batch_of(b"", count, count - 1, Codec.SNAPPY))
    bench.rocketmq(topic, message(b"after"))
    assert read_rocketmq(bench, topic, 0) == ([], count)
    found, next_offset = read_rocketmq(bench, topic, count)
    assert ([at.body for at in found], next_offset) == ([b"after"], count + 1)


def test_bodies_that_do_not_inflate_are_read_one_at_a_time() -> None:
    bench = PublishBench(convert=ConvertOptions(inflate_bytes_max=1 << 20))
    topic = bench.topic()
    for _ in range(3):
        body = deflate(Codec.ZSTD, b"0" * (2 << 20))
        bench.rocketmq(topic, message(body, sys_flag=flags.COMPRESSED | flags.COMPRESSION_ZSTD))
    assert [len(read_kafka(bench, topic, offset)) for offset in range(3)] == [1, 1, 1]


def test_frame_that_is_no_message_reaches_kafka_as_it_is() -> None:
    bench = PublishBench()
    topic = bench.topic()
    queue = topic.queues[0]
    bench.rocketmq(topic, message(b"before"))
    bench.store.append([Frame(queue, 3, b"rubbish")], NOW)
    bench.rocketmq(topic, message(b"after"))
    offset, values = 0, []
    while offset < 3:
        found = read_kafka(bench, topic, offset)
        values += [record.value for record in found]
        offset = found[-1].offset + 1
    assert values == [b"before", b"rubbish", b"after"]


# -- By time


def test_offsets_for_times_are_exact_in_batches() -> None:
    bench = PublishBench()
    topic = bench.topic()
    queue = topic.queues[0]
    bench.kafka(topic, batch([b"a", b"b", b"c"], timestamp_ms=NOW, codec=Codec.GZIP), NOW + 50)
    bench.rocketmq(topic, rocketmq_message.Message("", b"d", born_ms=NOW + 10), now_ms=NOW + 60)
    for timestamp_ms, expected in (
        (0, (0, NOW)),
        (NOW + 1, (1, NOW + 1)),
        (NOW + 3, (3, NOW + 10)),
        (NOW + 10, (3, NOW + 10)),
        (NOW + 11, None),
    ):
        assert now(bench.reader.find_time(queue, topic, timestamp_ms, 4)) == expected
    assert now(bench.reader.find_latest_time(queue, topic, 4)) == (3, NOW + 10)
    assert now(bench.reader.find_latest_time(queue, topic, 3)) == (2, NOW + 2)
    assert now(bench.reader.find_latest_time(topic.queues[1], topic, 0)) is None
    for stored_ms, expected in ((0, 0), (NOW + 50, 0), (NOW + 51, 3), (NOW + 61, 4)):
        assert now(bench.reader.find_stored(queue, stored_ms, 4)) == expected


@pytest.mark.parametrize("ahead_ms", [(1 << 63) - 1 - NOW, 3_601_000])
@pytest.mark.parametrize("is_delayed", [False, True])
def test_message_born_in_the_far_future_does_not_answer_every_later_look_up_by_time(
    ahead_ms: int, is_delayed: bool
) -> None:
    bench = PublishBench()
    topic = bench.topic()
    asked = b"TIMER_DELAY_MS\x0150\x02" if is_delayed else b""
    bench.rocketmq(topic, rocketmq_message.Message("", b"x", asked, born_ms=NOW + ahead_ms), now_ms=NOW)
    bench.delays.run(NOW + 60, 0)
    bench.settle()
    bench.rocketmq(topic, rocketmq_message.Message("", b"a", born_ms=NOW + 100), now_ms=NOW + 100)
    bench.kafka(topic, batch([b"b"], timestamp_ms=NOW + 200), NOW + 200)
    for at in (bench, bench.restarted()):
        queue = at.topics.get("orders").queues[0]
        found = [now(at.reader.find_time(queue, topic, NOW + ms, 3)) for ms in (100, 101, 201)]
        assert found == [(1, NOW + 100), (2, NOW + 200), None]
        assert [now(at.reader.find_stored(queue, NOW + ms, 3)) for ms in (100, 101, 201)] == [1, 2, 3]


def test_time_in_what_retention_left_is_never_later_than_the_record() -> None:
    bench = PublishBench()
    topic = bench.topic()
    queue = topic.queues[0]
    bench.kafka(topic, batch([b"future"], timestamp_ms=NOW + 1000))
    bench.kafka(topic, batch([b"a"], timestamp_ms=NOW))
    bench.store.retention.trim(queue, 1, NOW)
    assert now(bench.reader.find_time(queue, topic, NOW + 500, 2)) == (1, NOW)


def test_log_append_time_topics_are_searched_by_it() -> None:
    bench = PublishBench()
    topic = bench.topic(message_timestamp_type="LogAppendTime")
    queue = topic.queues[0]
    bench.kafka(topic, batch([b"a"], timestamp_ms=5), NOW + 1)
    bench.rocketmq(topic, message(b"b"), now_ms=NOW + 2)
    bench.rocketmq(topic, message(b"c"), now_ms=NOW + 3)
    assert [record.timestamp_ms for record in read_kafka(bench, topic, 0)] == [NOW + 1, NOW + 2, NOW + 3]
    assert now(bench.reader.find_time(queue, topic, NOW + 2, 3)) == (1, NOW + 2)


def test_cold_read_waits_and_hears_of_retention() -> None:
    bench = PublishBench(store=COLD)
    topic, queue = mixed(bench, seed=1)
    bench.disk.cached = False
    later = bench.reader.read_for_kafka(queue, topic, 0, 1 << 20, queue.visible_end)
    assert isinstance(later, Later)
    bench.store.retention.trim(queue, 5, NOW)
    found: list[object] = []
    later.start(found.append)
    assert isinstance(found[0], OffsetOutOfRange)


def test_time_in_a_large_batch_is_looked_up_in_a_thread() -> None:
    """In the loop 131,072 records, or 60 MB to inflate, would take a turn of 100 ms or more."""
    bench, threads = PublishBench(), ManualThreads()
    topic = bench.topic()
    queue = topic.queues[0]
    bench.kafka(topic, batch([b"v"] * 3, timestamp_ms=NOW), NOW)
    bench.kafka(topic, batch([b""] * 5_000, timestamp_ms=NOW + 1_000), NOW)
    bench.kafka(topic, batch([bytes(1 << 20)], timestamp_ms=NOW + 10_000, codec=Codec.ZSTD), NOW)
    end = queue.visible_end
    assert bench.reader.find_time(queue, topic, NOW, end) == (0, NOW)
    bench.store.executors.readers = threads
    for timestamp_ms, expected in ((NOW + 1_000, (3, NOW + 1_000)), (NOW + 10_000, (5_003, NOW + 10_000))):
        found = bench.reader.find_time(queue, topic, timestamp_ms, end)
        assert isinstance(found, Later)
        done: list[Any] = []
        found.start(done.append)
        assert done == []
        threads.run()
        assert done == [expected]
