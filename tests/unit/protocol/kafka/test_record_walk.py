"""The verification of a batch's records gives the same result in C and in Python, and valid records can be decoded.

Bytes of real producers, each kind of fault by itself, and thousands of damaged and of random bodies.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_batch as rb
from duolog.protocol.kafka import record_check, record_walk, varint
from duolog.protocol.kafka import record_reader as reading
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.record_batch import Reason, Record
from duolog.protocol.kafka.record_check import HEADERS_MAX, check_records
from duolog.protocol.kafka.record_walk import Flaw
from tests.kit.batches import NOW, RECORD, SECOND, batch_of
from tests.kit.lacking import skip_or_fail

NAMES = (b"TIMER_", b"TRAN_MSG_")
LIMIT = 50  # of headers
BEHIND = 1 << 40  # more headers than any body has

# kafka-clients 4.3.1 and librdkafka 2.x write the same bytes for these three records.
OF_PRODUCERS = bytes.fromhex(
    "12000000 01066f6e6500 14008c010206 6b6579 0100 ec0100cf8c0104 026b b401" + b"two".hex() * 30 +
    "06 0a7472616365 0278 086e6f6e65 01 04c3a9 00"
)  # fmt: skip

try:
    from duolog.protocol.kafka import _records
except ImportError:
    WALKS = {"Python": record_walk.walk}
else:
    WALKS = {"C": _records.walk, "Python": record_walk.walk}


def test_the_walk_in_c_is_there_where_ci_runs_and_is_taken() -> None:
    if "C" not in WALKS:
        skip_or_fail("protocol/kafka/_records.c is not built; `make setup` builds it with a C compiler and Python.h")
    assert record_check.IN_C
    assert record_check.walk is WALKS["C"]


def walked(data: rb.Buffer, start: int, count: int, headers_max: int = LIMIT) -> tuple[int, ...]:
    """What both walks give, for bytes in each kind of buffer."""
    found = {walk(data, start, count, headers_max, NAMES) for walk in WALKS.values()}
    assert len(found) == 1, f"{found} of {count} records, {bytes(data[start:]).hex()}"
    return found.pop()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_batch_of_real_producers(kind: Callable[[bytes], rb.Buffer]) -> None:
    for before in (b"", bytes(61)):
        assert walked(kind(before + OF_PRODUCERS), len(before), 3) == (-9000, 70, 3, True, False)
    header = rb.read_header(batch_of(OF_PRODUCERS, 3, 2))
    found, _ = reading.read_records(reading.OpenBatch(header, OF_PRODUCERS), reading.FIRST, 3)
    assert [record.key for record in found] == [None, b"key", b"k"]


def record(fields: str) -> bytes:
    body = bytes.fromhex(fields)
    return varint.varint(len(body)) + body


LONG_NULL = "818080 8000"
SOUND: dict[str, tuple[bytes, int, tuple[int, ...]]] = {
    "no records": (b"", 0, ((1 << 63) - 1, -1 << 63, 0, False, False)),
    "two of nothing": (RECORD + SECOND, 2, (0, 0, 0, True, False)),
    "empty key": (record("00 00 00 00 01 00"), 1, (0, 0, 0, False, False)),
    "a null in five bytes": (record(f"00 00 00 {LONG_NULL} 01 00"), 1, (0, 0, 0, True, False)),
    "a null value in five bytes": (record(f"00 00 00 01 {LONG_NULL} 00"), 1, (0, 0, 0, True, False)),
    "a header's null in five bytes": (record(f"00 00 00 01 01 02 00 {LONG_NULL}"), 1, (0, 0, 1, True, False)),
    "attributes, which have no meaning": (record("ff 00 00 00 01 00"), 1, (0, 0, 0, False, False)),
    "the earliest delta": (record("00 ffffffffffffffff7f 00 00 01 00"), 1, (-(1 << 62), -(1 << 62), 0, False, False)),
    "the latest delta": (record("00 feffffffffffffff7f 00 00 01 00"), 1, ((1 << 62) - 1, (1 << 62) - 1, 0, 0, 0)),
    "a name": (record("00 00 00 00 01 02" + "0e" + b"TIMER_X".hex() + "01"), 1, (0, 0, 1, False, True)),
    "a name as a value": (record("00 00 00 00 01 02" + "00 0e" + b"TIMER_X".hex()), 1, (0, 0, 1, False, False)),
    "the beginning of a name": (record("00 00 00 00 01 02" + "0a" + b"TIMER".hex() + "01"), 1, (0, 0, 1, 0, 0)),
    "a name behind another": (record("00 00 00 00 01 04 00 00 12" + b"TRAN_MSG_".hex() + "00"), 1, (0, 0, 2, 0, 1)),
}


@pytest.mark.parametrize(("body", "count", "expected"), SOUND.values(), ids=SOUND)
def test_sound_records_can_be_read(body: bytes, count: int, expected: tuple[int, ...]) -> None:
    assert walked(body, 0, count) == expected
    header = rb.read_header(batch_of(body, count, max(0, count - 1)))
    assert len(reading.read_records(reading.OpenBatch(header, body), reading.FIRST, count)[0]) == count


FAULTS: dict[str, tuple[bytes, tuple[int, int, int, int], str]] = {
    "nothing": (b"", (Flaw.END, 0, 0, 0), "the records end after 0 bytes, and the batch has 2 records"),
    "one of two": (RECORD, (Flaw.END, 1, 7, 0), "record 1 of the batch: the records end after 7 bytes"),
    "within a varint": (RECORD + b"\x80", (Flaw.END, 1, 8, 0), "the records end after 8 bytes"),
    "behind the end": (RECORD + SECOND[:-1], (Flaw.END, 1, 13, 0), "the records end after 13 bytes"),
    "an endless size": (b"\xff" * 20, (Flaw.VARINT, 0, 0, 5), "varint longer than 5 bytes at 0"),
    "an endless timestamp": (b"\x2a\0" + b"\x80" * 20, (Flaw.VARINT, 0, 2, 9), "varint longer than 9 bytes at 2"),
    "offset 1 at first": (SECOND, (Flaw.OFFSET, 0, 4, 1), "offset delta 1; the offset deltas of a batch are 0"),
    "offset 0 twice": (RECORD + RECORD, (Flaw.OFFSET, 1, 11, 0), "record 1 of the batch: offset delta 0; the"),
    "offset 2^32": (record("00 00 8080808020 01 01 00"), (Flaw.OFFSET, 0, 8, 1 << 32), "offset delta 4294967296"),
    "a key of -2": (record("00 00 00 03 01 00"), (Flaw.KEY, 0, 5, -2), "a key of -2 bytes"),
    "a value of -2": (record("00 00 00 01 03 00"), (Flaw.VALUE, 0, 6, -2), "a value of -2 bytes"),
    "-1 headers": (record("00 00 00 01 01 01"), (Flaw.COUNT, 0, 7, -1), "record 0 of the batch: -1 headers"),
    "a null header key": (record("00 00 00 01 01 02 01 01"), (Flaw.HEADER_KEY, 0, 8, -1), "a header key of -1 bytes"),
    "a header value of -2": (
        record("00 00 00 01 01 02 00 03"), (Flaw.HEADER_VALUE, 0, 9, -2), "a header value of -2 bytes",
    ),
    "a size that is too small": (
        b"\x0a" + RECORD[1:], (Flaw.SIZE, 0, 7, 6), "its fields end at byte 7, and by its size it ends at byte 6",
    ),
    "a size that is too large": (b"\x0e" + RECORD[1:] + b"\0", (Flaw.SIZE, 0, 7, 8), "it ends at byte 8"),
    "a negative size": (b"\x0b" + RECORD[1:], (Flaw.SIZE, 0, 7, -5), "it ends at byte -5"),
    "a value in the next record": (
        record("00 00 00 01 0e 00") + SECOND, (Flaw.SIZE, 0, 14, 7), "at byte 14, and by its size it ends at byte 7",
    ),
    "a key of 2^34 bytes": (record("00 00 00 feffffff7f 01 00"), (Flaw.END, 0, 11, 0), "the records end after 11"),
    "headers without end": (record("00 00 00 01 01 feffffff7f"), (Flaw.HEADERS, 0, 11, 0), "more than 262144 headers"),
    "one byte more": (RECORD + SECOND + b"\0", (Flaw.REST, 2, 14, 0), "2 of 2 records take 14 bytes of 15"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "expected", "message"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_found_and_said(body: bytes, expected: tuple[int, ...], message: str) -> None:
    assert walked(body, 0, 2) == walked(bytes(9) + body, 9, 2) == expected
    with pytest.raises(rb.InvalidBatch) as refused:
        check_records(body, 0, rb.read_header(batch_of(body, 2, 1)))
    assert message in str(refused.value)
    fault, index, _, _ = expected
    assert refused.value.reason is (Reason.TOO_LARGE if fault == Flaw.HEADERS else Reason.INVALID)
    is_of_a_record = fault not in (Flaw.HEADERS, Flaw.REST)
    assert [error.index for error in refused.value.record_errors] == [index] * is_of_a_record
    assert all(
        str(refused.value) == f"record {index} of the batch: {each.message}" for each in refused.value.record_errors
    )


def test_every_kind_of_fault_is_among_them() -> None:
    assert {Flaw(expected[0]) for _, expected, _ in FAULTS.values()} == set(Flaw)


# -- Any bytes

fields = st.none() | st.binary(max_size=200)
texts = st.sampled_from(["", "h", "TIMER_DELAY_MS", "TIMER", "TRAN_MSG_"]) | st.text(max_size=80)
records = st.tuples(st.integers(-1, 1 << 61), fields, fields, st.lists(st.tuples(texts, fields), max_size=4))


def body_of(drawn: list[tuple[int, bytes | None, bytes | None, list[rb.Header]]]) -> bytes:
    builder = BatchBuilder()
    for number, sent in enumerate(drawn):
        builder.append(number, *sent)
    return bytes(builder.finish(0, -1)[rb.HEADER_BYTES :])


bodies = st.lists(records, min_size=1, max_size=6).map(lambda drawn: (body_of(drawn), len(drawn), drawn))


@given(bodies)
def test_records_as_they_are_built_are_sound(built: tuple[bytes, int, Any]) -> None:
    body, count, drawn = built
    times = [sent[0] - drawn[0][0] for sent in drawn]
    names = [name.encode() for *_, headers in drawn for name, _ in headers]
    assert walked(body, 0, count) == (
        min(times),
        max(times),
        len(names),
        any(key is None for _, key, _, _ in drawn),
        any(name.startswith(NAMES) for name in names),
    )


@given(bodies, st.integers(0, 1 << 30))
@example((OF_PRODUCERS, 3, None), 7)
def test_damaged_records_give_the_same_and_what_passes_is_readable(built: tuple[bytes, int, Any], seed: int) -> None:
    body, count, _ = built
    random = Random(seed)
    for _ in range(20):
        damaged = mutated(random, body)
        found = walked(damaged, 0, count, random.choice((0, 3, LIMIT, BEHIND)))
        if len(found) == 5:
            header = rb.read_header(batch_of(damaged, count, count - 1, base_timestamp=NOW))
            read, mark = reading.read_records(reading.OpenBatch(header, damaged), reading.FIRST, count)
            assert mark.skipped == count
            assert [each.timestamp_ms - NOW for each in (min(read, key=time), max(read, key=time))] == [*found[:2]]


def time(read: Record) -> int:
    return read.timestamp_ms


def mutated(random: Random, body: bytes) -> bytes:
    """Change, remove, add or repeat some bytes; mostly the structure, which is what small numbers are."""
    changed = bytearray(body)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(changed) + 1)
        match random.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([random.choice((0, 1, 2, 3, 126, 127, 128, 129, 254, 255))])
            case 1:
                del changed[at : at + random.randint(1, 9)]
            case 2:
                changed[at:at] = random.choice((b"\x80", b"\0", b"\xff" * 9, bytes(9), random.randbytes(5)))
            case 3:
                changed[at:at] = changed[at : at + random.randint(1, 40)]
            case 4 if at < len(changed):
                changed[at] = (changed[at] + random.choice((-2, -1, 1, 2))) & 255
    return bytes(changed)


@settings(max_examples=3 * settings().max_examples)
@given(st.binary(max_size=80), st.integers(0, 1 << 31), st.integers(0, BEHIND))
def test_garbage_gives_the_same(body: bytes, count: int, headers_max: int) -> None:
    walked(body, 0, count, headers_max)
    walked(b"\x0c" + body, 1, count, headers_max)


def test_what_only_readers_of_garbage_pass_is_refused() -> None:
    """`read_records` takes gaps in the offsets, for compaction leaves them; a producer's batch has none."""
    gap = RECORD + b"\x0c\0\0\x04\x01\x01\0"
    header = rb.read_header(batch_of(gap, 2, 2))
    assert len(reading.read_records(reading.OpenBatch(header, gap), reading.FIRST, 2)[0]) == 2
    with pytest.raises(ProtocolError):
        check_records(gap, 0, header)


def test_headers_of_a_batch_are_limited() -> None:
    for count in (HEADERS_MAX, HEADERS_MAX + 1):
        body = record((b"\0\0\0\x01\x01" + varint.varint(count) + b"\0\x01" * count).hex())
        assert (len(walked(body, 0, 1, HEADERS_MAX)) == 5) is (count == HEADERS_MAX)


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
def test_wrong_arguments_are_refused(walk: Callable[..., Any]) -> None:
    with pytest.raises(TypeError):
        walk("text", 0, 1, 1, NAMES)
    if walk is not record_walk.walk:  # It must not trust even us with a pointer.
        for start in (-1, 2):
            with pytest.raises(ValueError, match="start"):
                walk(b"x", start, 1, 1, NAMES)
        for names in (NAMES * 5, ("text",), [b"TIMER_"]):
            with pytest.raises((ValueError, TypeError)):
                walk(b"x", 0, 1, 1, names)
