"""Record batches agree with those of kafka-python and aiokafka both ways; malformed batches are refused."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import batch_builder as building
from duolog.protocol.kafka import record_batch as rb
from duolog.protocol.kafka import record_reader as reading
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.compression import Codec, inflate
from duolog.protocol.kafka.record_batch import InvalidBatch, Reason, Record
from duolog.protocol.kafka.record_check import check_records
from tests.kit.batches import NOW, RECORD, SECOND, batch_of

LIMIT = 1 << 20

blobs = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=10), blobs), max_size=3)
messages = st.tuples(st.integers(-1, 1 << 52) | st.integers(NOW, NOW + 10_000), blobs, blobs, headers)


def numbered(drawn: list[tuple[int, bytes | None, bytes | None, list[rb.Header]]], base_offset: int) -> list[Record]:
    return [Record(base_offset + n, *message) for n, message in enumerate(drawn)]


batches = st.builds(numbered, st.lists(messages, min_size=1, max_size=8), st.integers(0, 1 << 40))
codecs = st.sampled_from(Codec)

# Whole batches take hypothesis long to draw; each run draws others.
few = settings(max_examples=settings().max_examples * 3 // 10)


def opened(batch: rb.Buffer) -> list[Record]:
    return [record._replace(headers=list(record.headers)) for record in reading.records(batch, LIMIT)]


def patched(batch: rb.Buffer, at: int, form: str, value: int, sign: bool = True) -> bytearray:
    """A batch with one header field changed, and a new checksum if `sign` is true."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, at, value)
    if sign:
        struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return changed


# -- With other implementations


@pytest.mark.parametrize("builder", [KafkaPythonBuilder, AiokafkaBuilder])
@few
@given(batches, codecs)
def test_batches_of_others_are_read(builder: Callable[..., Any], drawn: list[Record], codec: Codec) -> None:
    sent = [record._replace(offset=n, timestamp_ms=max(record.timestamp_ms, 0)) for n, record in enumerate(drawn)]
    theirs = builder(
        magic=2,
        compression_type=int(codec),
        is_transactional=1,
        producer_id=7,
        producer_epoch=3,
        base_sequence=2**31 - 1,
        batch_size=1 << 30,
    )
    for record in sent:
        theirs.append(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
    batch = bytes(theirs.build())
    header = rb.check(batch)
    assert opened(batch) == sent
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 2**31 - 1)
    assert header.last_sequence == (2**31 - 1 if len(sent) == 1 else len(sent) - 2)
    assert header.is_transactional
    assert header.max_timestamp == max(record.timestamp_ms for record in sent)
    assert header.record_count == len(sent)
    assert header.size == len(batch)


@pytest.mark.parametrize("reader", [KafkaPythonBatch, AiokafkaBatch])
@few
@given(batches, codecs)
def test_our_batches_are_read_by_others(reader: Callable[..., Any], sent: list[Record], codec: Codec) -> None:
    batch = building.build(sent, sent[0].offset, 5, codec=codec)
    theirs = reader(bytes(batch))
    assert theirs.validate_crc()
    assert theirs.max_timestamp == max(record.timestamp_ms for record in sent)
    found = [Record(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in theirs]
    assert found == sent


@few
@given(batches)
def test_plain_batches_are_the_same_bytes_as_kafka_pythons(drawn: list[Record]) -> None:
    theirs = KafkaPythonBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=0,
    )
    theirs._batch_size = 1 << 30
    for n, record in enumerate(drawn):
        theirs.append(n, record.timestamp_ms, record.key, record.value, record.headers)
    batch = building.build(drawn, drawn[0].offset, 0)
    rb.stamp(batch, 0, 0, struct.unpack_from(">i", theirs._buffer, 12)[0])
    expected = bytearray(theirs.build())
    rb.stamp(expected, 0, 0, 0)
    rb.stamp(batch, 0, 0, 0)
    assert batch == expected


# -- Round trips


@few
@given(batches, codecs, st.integers(0, 1 << 30))
def test_round_trip(sent: list[Record], codec: Codec, leader_epoch: int) -> None:
    batch = building.build(
        sent, sent[0].offset, leader_epoch, codec=codec, producer=(1 << 40, 2, 3), is_transactional=True
    )
    assert opened(batch) == sent
    assert batch == building.build(
        sent, sent[0].offset, leader_epoch, codec=codec, producer=(1 << 40, 2, 3), is_transactional=True
    )
    header = rb.read_header(batch)
    assert header.base_offset == sent[0].offset
    assert header.last_offset == sent[-1].offset
    assert header.leader_epoch == leader_epoch
    assert header.codec == codec


@few
@given(batches, codecs, st.integers(-2, 1 << 52))
def test_look_up_by_time_agrees_with_reading_all(sent: list[Record], codec: Codec, timestamp_ms: int) -> None:
    batch = building.build(sent, sent[0].offset, 0, codec=codec)
    first = next(((r.offset, r.timestamp_ms) for r in sent if r.timestamp_ms >= timestamp_ms), None)
    assert reading.find_timestamp(batch, timestamp_ms, LIMIT) == first
    latest = max(record.timestamp_ms for record in sent)
    assert reading.max_timestamp_record(batch, LIMIT) == reading.find_timestamp(batch, latest, LIMIT)


@few
@given(st.lists(batches, max_size=4), st.binary(min_size=1, max_size=100))
def test_split_gives_the_batches_of_a_fetch(sent: list[list[Record]], tail: bytes) -> None:
    built = [bytes(building.build(records, records[0].offset, 0)) for records in sent]
    assert list(map(bytes, rb.split(b"".join(built)))) == built
    with pytest.raises(ProtocolError):
        rb.split(b"".join(built) + tail)


@pytest.mark.parametrize("power", [1 << bits for bits in (6, 13, 20, 27, 34, 41, 48, 55, 61)])
def test_timestamp_deltas_at_the_edges_of_varints(power: int) -> None:
    for beside in range(-2, 3):
        for first, second in ((0, power + beside), (power + beside, 0)):
            sent = [Record(0, first, None, None, []), Record(1, second, None, None, [])]
            assert opened(building.build(sent, 0, 0)) == sent


def test_timestamps_beyond_all_calendars_become_the_nearest() -> None:
    wild = [-(1 << 63), (1 << 63) - 1, 1 << 62, -2, -1, NOW]
    batch = building.build([Record(n, at, None, None) for n, at in enumerate(wild)], 0, 0)
    top = rb.TIMESTAMP_MS_MAX
    assert [record.timestamp_ms for record in opened(batch)] == [-1, top, top, -1, -1, NOW]
    assert rb.check(batch).max_timestamp == top
    assert [r.timestamp for r in KafkaPythonBatch(bytes(batch))] == [-1, top, top, -1, -1, NOW]


def test_gaps_and_a_longer_reach_than_the_last_record() -> None:
    builder = BatchBuilder()
    builder.append(0, NOW, b"k", b"v")
    builder.append(5, NOW, b"k", b"v")
    assert builder.count == 2
    batch = builder.finish(100, 0, last_offset_delta=9)
    assert builder.size == len(batch)
    assert [record.offset for record in opened(batch)] == [100, 105]
    assert rb.read_header(batch).last_offset == 109


def test_header_names_that_are_no_text_are_shown_as_java_does() -> None:
    batch = building.build([Record(0, NOW, None, b"v", [("ab", b"1")])], 0, 0).replace(b"ab", b"a\xff")
    assert opened(batch)[0].headers == [("a\ufffd", b"1")]


# -- Stamping


@few
@given(batches, codecs, st.integers(0, 1 << 60), st.integers(0, 1 << 30))
def test_stamping_keeps_the_signature(sent: list[Record], codec: Codec, base_offset: int, leader_epoch: int) -> None:
    batch = building.build(sent, sent[0].offset, 0, codec=codec)
    buffer = bytearray(b"before" + batch + b"after")
    rb.stamp(buffer, 6, base_offset, leader_epoch)
    stamped = bytes(buffer[6:-5])
    assert KafkaPythonBatch(stamped).validate_crc()
    assert (rb.read_header(stamped).base_offset, rb.read_header(stamped).leader_epoch) == (base_offset, leader_epoch)
    assert [r._replace(offset=0) for r in opened(stamped)] == [r._replace(offset=0) for r in sent]
    assert buffer == b"before" + stamped + b"after"


@few
@given(batches, codecs)
def test_log_append_time_is_signed_anew_and_seen_by_all(sent: list[Record], codec: Codec) -> None:
    buffer = bytearray(b"before" + building.build(sent, sent[0].offset, 0, codec=codec) + b"after")
    rb.stamp_log_append_time(memoryview(buffer), 6, NOW)
    batch = bytes(buffer[6:-5])
    theirs = KafkaPythonBatch(batch)
    assert theirs.validate_crc()
    assert [(r.timestamp, r.timestamp_type) for r in theirs] == [(NOW, 1)] * len(sent)
    assert opened(batch) == [record._replace(timestamp_ms=NOW) for record in sent]
    assert rb.read_header(batch).is_log_append_time
    assert reading.find_timestamp(batch, NOW, 0) == reading.max_timestamp_record(batch, 0) == (sent[0].offset, NOW)
    assert reading.find_timestamp(batch, NOW + 1, 0) is None


# -- Refusing


GOOD = bytes(building.build([Record(n, NOW, b"k", b"value", [("h", b"x")]) for n in range(3)], 0, -1))

REFUSED: list[tuple[str, rb.Buffer, Reason]] = [
    ("nothing", b"", Reason.NOT_ONE_BATCH),
    ("too short", GOOD[:60], Reason.CORRUPT),
    ("magic 1", patched(GOOD, 16, ">b", 1), Reason.NOT_ONE_BATCH),
    ("two batches", GOOD + GOOD, Reason.NOT_ONE_BATCH),
    ("a batch and a bit", GOOD + b"x", Reason.NOT_ONE_BATCH),
    ("half a batch", GOOD[:-1], Reason.CORRUPT),
    ("length below a header", patched(GOOD, 8, ">i", 48), Reason.CORRUPT),
    ("negative length", patched(GOOD, 8, ">i", -1), Reason.CORRUPT),
    ("larger than allowed", bytes(building.build([Record(0, NOW, None, bytes(1000))], 0, 0)), Reason.TOO_LARGE),
    ("a flipped byte", patched(GOOD, 70, ">B", 0xAA, sign=False), Reason.CORRUPT),
    ("a wrong CRC", patched(GOOD, 17, ">I", 1, sign=False), Reason.CORRUPT),
    ("base offset 1", patched(GOOD, 0, ">q", 1), Reason.INVALID),
    ("count 0", patched(GOOD, 57, ">i", 0), Reason.INVALID),
    ("count -1", patched(GOOD, 57, ">i", -1), Reason.INVALID),
    ("count above last offset delta", patched(GOOD, 57, ">i", 4), Reason.INVALID),
    ("last offset delta above count", patched(GOOD, 23, ">i", 3), Reason.INVALID),
    ("a million records in ten bytes", batch_of(bytes(10), 1 << 20, (1 << 20) - 1), Reason.INVALID),
    ("more records than allowed", batch_of(bytes(10), (1 << 20) + 1, 1 << 20, Codec.ZSTD), Reason.TOO_LARGE),
    ("all the records there are", batch_of(bytes(10), (1 << 31) - 1, (1 << 31) - 2, Codec.ZSTD), Reason.TOO_LARGE),
    ("control batch", patched(GOOD, 21, ">h", 0x20), Reason.INVALID),
    ("producer without sequence", patched(patched(GOOD, 43, ">q", 7), 51, ">h", 0), Reason.INVALID),
    ("producer without epoch", patched(patched(GOOD, 43, ">q", 7), 53, ">i", 0), Reason.INVALID),
    ("transactional without producer", patched(GOOD, 21, ">h", 0x10), Reason.INVALID),
    ("LogAppendTime", patched(GOOD, 21, ">h", 0x08), Reason.TIMESTAMP),
    ("base timestamp beyond all calendars", patched(GOOD, 27, ">q", 1 << 62), Reason.TIMESTAMP),
    ("negative timestamp", patched(GOOD, 35, ">q", -2), Reason.TIMESTAMP),
    ("codec 5", patched(GOOD, 21, ">h", 5), Reason.COMPRESSION),
]


@pytest.mark.parametrize(("batch", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_bad_batch_is_refused_with_its_reason(batch: rb.Buffer, reason: Reason) -> None:
    with pytest.raises(InvalidBatch) as refused:
        rb.check(batch, bytes_max=1000)
    assert refused.value.reason is reason, refused.value


def test_sequence_zero_without_a_producer_is_accepted() -> None:
    # aiokafka and Sarama send it.
    assert rb.check(patched(GOOD, 53, ">i", 0)).last_sequence == -1


assert opened(batch_of(RECORD + SECOND, 2, 1))[1].offset == 1

LIES: list[tuple[str, bytes]] = [
    ("count above the records", batch_of(RECORD + SECOND, 3, 2)),
    ("count below the records", batch_of(RECORD + SECOND, 1, 0)),
    ("a million records inflated from nothing", batch_of(b"", 1 << 20, (1 << 20) - 1, Codec.ZSTD)),
    ("size above the record", batch_of(b"\x0e\0\0\0\x01\x01\0", 1, 0)),
    ("size below the record", batch_of(b"\x0a\0\0\0\x01\x01\0", 1, 0)),
    ("negative size", batch_of(b"\x0b\0\0\0\x01\x01\0", 1, 0)),
    ("key beyond the end", batch_of(b"\x0c\0\0\0\x7e\x01\0", 1, 0)),
    ("key of -2 bytes", batch_of(b"\x0c\0\0\0\x03\x01\0", 1, 0)),
    ("value beyond the end", batch_of(b"\x0c\0\0\0\x01\x7e\0", 1, 0)),
    ("value of -2 bytes", batch_of(b"\x0c\0\0\0\x01\x03\0", 1, 0)),
    ("header count beyond the end", batch_of(b"\x0c\0\0\0\x01\x01\x7e", 1, 0)),
    ("header count of 2^62", batch_of(b"\x1e\0\0\0\x01\x01" + b"\xfe" * 8 + b"\x7f", 1, 0)),
    ("header count of -1", batch_of(b"\x0c\0\0\0\x01\x01\x01", 1, 0)),
    ("null header key", batch_of(b"\x10\0\0\0\x01\x01\x02\x01\x01", 1, 0)),
    ("header value of -2 bytes", batch_of(b"\x10\0\0\0\x01\x01\x02\0\x03", 1, 0)),
    ("varint without end", batch_of(b"\xff" * 20, 1, 0)),
    ("offsets that stand still", batch_of(RECORD + RECORD, 2, 1)),
    ("offsets that fall", batch_of(SECOND + RECORD, 2, 1)),
    ("negative offset delta", batch_of(b"\x0c\0\0\x01\x01\x01\0", 1, 0)),
    ("offset beyond the last", batch_of(RECORD + b"\x0c\0\0\x04\x01\x01\0", 2, 1)),
    ("base timestamp that overflows", batch_of(RECORD, 1, 0, base_timestamp=(1 << 63) - 1)),
    ("not the codec that it says", patched(GOOD, 21, ">h", Codec.LZ4)),
    ("codec 6", batch_of(RECORD, 1, 0, codec=6)),
    ("count 0", patched(GOOD, 57, ">i", 0)),
    ("shorter than its length", GOOD[:-1]),
    ("no header", GOOD[:60]),
]


@pytest.mark.parametrize("batch", [row[1] for row in LIES], ids=[row[0] for row in LIES])
def test_lying_batch_raises_protocol_error_where_it_is_opened(batch: bytes) -> None:
    with pytest.raises(ProtocolError):
        opened(batch)


def checked(batch: bytes) -> None:
    """Do to a batch what the broker does before it is stored."""
    header = rb.check(batch)
    data, start = (inflate(header.codec, batch[61:], LIMIT), 0) if header.codec else (batch, 61)
    check_records(data, start, header)


# These are only refused where a batch is produced; who reads one takes what it finds.
STRICT = [
    ("a gap in the offsets", batch_of(RECORD + b"\x0c\0\0\x04\x01\x01\0", 2, 2)),
    ("bytes behind the records", batch_of(RECORD + SECOND + b"\0", 2, 1)),
    ("nothing, compressed", batch_of(b"", 1, 0, Codec.SNAPPY)),
    ("a value that ends in the next record", batch_of(b"\x0c\0\0\0\x01\x08\0" + SECOND, 2, 1)),
]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("batch", [row[1] for row in LIES + STRICT], ids=[row[0] for row in LIES + STRICT])
def test_lying_batch_is_refused_where_it_is_produced(batch: bytes, codec: Codec) -> None:
    if (
        codec
        and len(batch) > 61
        and rb.read_header(batch).codec == Codec.NONE
        and rb.read_header(batch).size == len(batch)
    ):
        header = rb.read_header(batch)
        batch = batch_of(
            batch[61:], header.record_count, header.last_offset_delta, codec, base_timestamp=header.base_timestamp
        )
    with pytest.raises(ProtocolError):
        checked(batch)


def use_all(batch: rb.Buffer) -> None:
    """Give a batch to every reader there is; none may raise anything but ProtocolError."""
    for use in (
        rb.check,
        rb.split,
        opened,
        lambda b: reading.find_timestamp(b, NOW, LIMIT),
        lambda b: reading.max_timestamp_record(b, LIMIT),
        lambda b: rb.read_header(b, 100),
    ):
        try:
            use(batch)
        except ProtocolError:
            pass


edges = st.sampled_from([-(1 << 63), -1, NOW, (1 << 62) - 2, (1 << 63) - 1])


@given(st.binary(max_size=80), st.integers(1, 200), st.sampled_from([0, 1, 2, 3, 4, 6]), edges)
def test_garbage_as_records_raises_only_protocol_error(body: bytes, count: int, codec: int, base: int) -> None:
    use_all(batch_of(body, count, count - 1, codec, base_timestamp=base))


@given(st.binary(max_size=200))
def test_garbage_as_batch_raises_only_protocol_error(batch: bytes) -> None:
    use_all(batch)


@few
@given(batches, codecs, st.data())
def test_damaged_batch_yields_no_record_that_does_not_fit(
    sent: list[Record], codec: Codec, data: st.DataObject
) -> None:
    batch = building.build(sent, sent[0].offset, 0, codec=codec)
    batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    use_all(batch)
    header = rb.read_header(batch)
    try:
        for record in reading.records(batch, LIMIT):
            assert header.base_offset <= record.offset <= header.last_offset
            assert record.timestamp_ms == header.max_timestamp or -(1 << 63) <= record.timestamp_ms < 1 << 63
    except ProtocolError:
        pass


def test_offset_beyond_the_last_is_refused_before_it_is_yielded() -> None:
    body = RECORD + b"\x1a\0\0" + b"\xfe" * 7 + b"\x7f" + b"\x01\x01\0" + b"\x0c\0\0\x04\x01\x01\0"
    records = reading.records(batch_of(body, 40, 39), LIMIT)
    with pytest.raises(ProtocolError, match="offset delta"):
        list(records)


def test_reading_in_parts_gives_the_same_records() -> None:
    sent = [Record(n, NOW + n, b"k", b"v" * n, ()) for n in range(70)]
    opened_batch = reading.open_batch(building.build(sent, 0, 0, codec=Codec.LZ4), LIMIT)
    for step in (1, 7, 69, 70, 1000):
        found: list[Record] = []
        mark = reading.FIRST
        while mark.skipped < len(sent):
            some, mark = reading.read_records(opened_batch, mark, step)
            found += some
        assert found == sent


def test_records_are_skipped_by_their_sizes_where_nothing_is_wrong() -> None:
    sent = [Record(n, NOW + n * 1000, b"k", b"v" * n, (("h", b"x"),)) for n in range(300)]
    opened = reading.open_batch(building.build(sent, 0, 0, codec=Codec.LZ4), LIMIT)
    for skipped in (0, 1, 127, 128, 299):
        start = reading.read_records(opened, reading.FIRST, skipped)[1]
        for count in (0, 1, 2, 172, 299):
            if skipped + count <= 300:
                assert reading.skip_records(opened, start, count) == reading.read_records(opened, start, count)[1]
    assert reading.skip_records(opened, reading.FIRST, 301) is None  # There are 300.
    with_gap = reading.OpenBatch(opened.header._replace(record_count=2), RECORD + b"\x0c\0\0\x04\x01\x01\0")
    assert reading.skip_records(with_gap, reading.FIRST, 2) is None
    too_short = reading.OpenBatch(opened.header._replace(record_count=2), RECORD + b"\x0e\0\0\x02\x01\x01\0")
    assert reading.skip_records(too_short, reading.FIRST, 2) is None


def test_inflation_is_limited() -> None:
    batch = building.build([Record(0, NOW, None, bytes(1 << 20))], 0, 0, codec=Codec.ZSTD)
    with pytest.raises(ProtocolError):
        list(reading.records(batch, 1 << 19))
