"""Check the records of a produced batch, as Kafka's `LogValidator` does, so that every reader can read what is stored.

    sizes        each record's size is what its fields take; all records together fill the body exactly
    offsets      the offset deltas are 0, 1, 2, ... up to the header's record count
    fields       sizes of keys, values and headers are -1 (null, where null is allowed) or more, and stay in the record
    timestamps   the earliest and the latest one are reported; the caller holds them to its bounds

Producers mostly write runs of records with one layout: the same sizes, the next offset delta. The records of a run are
checked by columns, each of which is the same byte of all of them, at some 20 ns a record; a record outside a run takes
0.3 us and more. A run is looked for where two records in a row have the same size. After a run that was none, the next
search waits for twice as many records, so that records that only begin like a run cost a few percent more.

Source: Kafka's `LogValidator.java`, `DefaultRecord.java`.
"""

from typing import Final, NamedTuple

from protocol.errors import ProtocolError
from protocol.kafka.record_batch import RECORD_BYTES_MIN, BatchHeader, InvalidBatch, Reason, RecordError, read_more

HEADERS_MAX: Final = 1 << 18  # of the records of one batch that are walked one by one, at 0.15 us each
_RUN_RECORDS_MIN: Final = 32  # Below it, the columns take longer than the records one by one.
_BLOCK_RECORDS_MIN, _BLOCK_RECORDS_MAX = 64, 4096
_COLUMNS_MAX: Final = 32

_new_tuple: Final = tuple.__new__  # At half the cost of calling the class.
_HIGH: Final = bytes(range(128, 256))

# The bytes of offset deltas, doubled as zig-zag has them. Below 64 a delta has one byte, below 8192 two, then three.
_ONE_BYTE_UNTIL, _TWO_BYTES_UNTIL = 1 << 6, 1 << 13
_SINGLE: Final = bytes(range(0, 128, 2))
_LOW: Final = bytes(range(128, 256, 2)) * (_BLOCK_RECORDS_MAX // 64 + 1)  # It repeats after 64 records.
_UPPER: Final = b"".join(bytes((number,)) * 64 for number in range(128))  # the bits above these six, in the last byte
_MIDDLE: Final = b"".join(bytes((number,)) * 64 for number in range(128, 256))  # the same, where another byte follows


class Walked(NamedTuple):
    """What a walk through the records has found."""

    earliest_ms: int
    latest_ms: int
    has_null_key: bool
    records: int
    stepped: int  # records and headers that were walked one by one


def check_records(body: bytes, header: BatchHeader, records_max: int | None = None) -> Walked:
    """Check all records of a batch, or the first `records_max`; `body` has them inflated. Raises InvalidBatch.

    The timestamps are those in the records, also where a reader would see LogAppendTime.
    """
    count = header.record_count
    at = index = stepped = headers = 0
    has_null_key = False
    earliest, latest = 1 << 62, -1 << 62
    search_at, patience = 0, 1
    size = -1
    until = count if records_max is None else min(records_max, count)
    try:
        while index < until:
            start, last_size = at, size
            # Varints as in `record_batch.read_records`: mostly one byte, sizes and deltas as often two.
            size = body[at]
            at += 1
            if size > 127:
                if (second := body[at]) < 128:
                    size += (second << 7) - 128
                    at += 1
                else:
                    size, at = read_more(body, at, size)
            end = at + (size >> 1)
            if size == last_size and index >= search_at and until - index >= _RUN_RECORDS_MIN:
                run = _check_run(body, start, index, until, end - start)
                if run.records:
                    index += run.records
                    at = start + run.records * (end - start)
                    earliest, latest = min(earliest, run.earliest), max(latest, run.latest)
                    has_null_key = has_null_key or run.has_null_key
                    patience = 1
                    size = -1
                    continue
                search_at, patience = index + patience, 2 * patience
            stepped += 1
            delta_ms = body[at + 1]  # Behind the attributes, which have no meaning yet.
            at += 2
            if delta_ms > 127:
                delta_ms, at = read_more(body, at, delta_ms)
            delta_ms = (delta_ms >> 1) ^ -(delta_ms & 1)
            if delta_ms < earliest:
                earliest = delta_ms
            if delta_ms > latest:
                latest = delta_ms
            delta = body[at]
            at += 1
            if delta > 127:
                delta, at = read_more(body, at, delta)
            if delta != 2 * index:
                raise _wrong_offset(index, delta)
            n = body[at]
            at += 1
            if n != 1:
                if n > 127:
                    n, at = read_more(body, at, n)
                if n & 1:
                    raise ProtocolError(f"a key of {-(n + 1) // 2} bytes")
                at += n >> 1
            else:
                has_null_key = True
            n = body[at]
            at += 1
            if n != 1:
                if n > 127:
                    if (second := body[at]) < 128:
                        n += (second << 7) - 128
                        at += 1
                    else:
                        n, at = read_more(body, at, n)
                if n & 1:
                    raise ProtocolError(f"a value of {-(n + 1) // 2} bytes")
                at += n >> 1
            n = body[at]
            at += 1
            if n:
                if n > 127:
                    n, at = read_more(body, at, n)
                headers += n
                if headers > 2 * HEADERS_MAX:  # Doubled, as zig-zag has their count.
                    raise InvalidBatch(Reason.TOO_LARGE, f"batch of more than {HEADERS_MAX} headers")
                at = _skip_headers(body, at, n)
            if at != end or size & 1:
                raise ProtocolError(f"its fields end at {at}, and by its size it ends at {end}")
            index += 1
    except IndexError:
        raise _invalid(index, f"the records end after {len(body)} bytes, and the batch says {count}") from None
    except InvalidBatch:
        raise
    except ProtocolError as error:
        raise _invalid(index, str(error)) from None
    left = len(body) - at
    if (until == count and left) or left < RECORD_BYTES_MIN * (count - until):
        raise InvalidBatch(Reason.INVALID, f"{until} of {count} records take {at} bytes of {len(body)}")
    base_ms = header.base_timestamp
    return _new_tuple(Walked, (base_ms + earliest, base_ms + latest, has_null_key, until, stepped + headers // 2))


def _skip_headers(body: bytes, at: int, doubled_count: int) -> int:
    """Give the place behind the headers of a record; `at` is behind their count."""
    if doubled_count & 1:
        raise ProtocolError(f"{-(doubled_count + 1) // 2} headers")
    for _ in range(doubled_count >> 1):
        n = body[at]
        at += 1
        if n > 127:
            n, at = read_more(body, at, n)
        if n & 1:
            raise ProtocolError(f"a header key of {-(n + 1) // 2} bytes")
        at += n >> 1
        n = body[at]
        at += 1
        if n != 1:
            if n > 127:
                n, at = read_more(body, at, n)
            if n & 1:
                raise ProtocolError(f"a header value of {-(n + 1) // 2} bytes")
            at += n >> 1
    return at


def _invalid(index: int, message: str) -> InvalidBatch:
    return InvalidBatch(Reason.INVALID, f"record {index} of the batch: {message}", (RecordError(index, message),))


def _wrong_offset(index: int, doubled: int) -> InvalidBatch:
    delta = (doubled >> 1) ^ -(doubled & 1)
    return _invalid(index, f"offset delta {delta}, where the batch's offsets rise from 0 by 1")


# -- Runs


class _Run(NamedTuple):
    """Records of one layout, and the least and the greatest of their timestamp deltas."""

    records: int
    earliest: int = 1 << 62
    latest: int = -1 << 62
    has_null_key: bool = False


_NO_RUN: Final = _Run(0)


class _Layout(NamedTuple):
    """Where the structure of a record stands, by distance from its first byte."""

    sizes: list[int]  # the bytes of all sizes and counts, which are the same in the whole run
    times: range  # the bytes of the timestamp delta
    deltas: range  # the bytes of the offset delta
    has_null_key: bool


def _check_run(body: bytes, start: int, index: int, count: int, stride: int) -> _Run:
    """Check blocks of records that have the layout of the one at `start`, until one is not wholly so.

    Nothing is said of the records behind the last whole block.
    """
    layout = _layout_of(body, start, stride)
    if layout is None:
        return _NO_RUN
    run, block = _NO_RUN, _BLOCK_RECORDS_MIN
    until = min(count, index + (len(body) - start) // stride, _same_width_until(index))
    while index < until:
        records = min(block, until - index)
        end = start + records * stride
        if not _is_uniform(body, start, end, stride, layout, index):
            break
        times = [body[start + at : end : stride] for at in layout.times]
        found = _extremes(times)
        if found is None:
            break
        run = _Run(run.records + records, min(run.earliest, found[0]), max(run.latest, found[1]), layout.has_null_key)
        index, start, block = index + records, end, min(2 * block, _BLOCK_RECORDS_MAX)
    return run


def _layout_of(body: bytes, start: int, stride: int) -> _Layout | None:
    """Give the layout of a record; None if it is faulty, or has too many fields to be checked by columns."""
    places: list[int] = []
    try:
        at = start + _noted(places, body, start, start)[1]
        times_at = at + 1
        deltas_at = start + _noted([], body, start, times_at)[1]
        at = start + _noted([], body, start, deltas_at)[1]
        times, deltas = range(times_at - start, deltas_at - start), range(deltas_at - start, at - start)
        has_null_key = body[at] == 1
        for _ in range(2):
            at = _behind_field(places, body, start, at)
        headers, behind = _noted(places, body, start, at)
        at = start + behind
        if headers & 1 or headers > _COLUMNS_MAX:
            return None
        for _ in range(headers):  # The count is doubled, and each header has a key and a value.
            at = _behind_field(places, body, start, at)
    except (IndexError, ProtocolError):
        return None
    return _Layout(places, times, deltas, has_null_key) if at == start + stride else None


def _behind_field(places: list[int], body: bytes, start: int, at: int) -> int:
    """Note where the size of a field stands; give the place behind the field."""
    size, behind = _noted(places, body, start, at)
    if size & 1 and size != 1:
        raise ProtocolError("a negative size")
    return start + behind + (0 if size == 1 else size >> 1)


def _noted(places: list[int], body: bytes, start: int, at: int) -> tuple[int, int]:
    """Read a varint, and note its bytes: (still in zig-zag, where it ends), by distance from `start`."""
    value, behind = body[at], at + 1
    if value > 127:
        value, behind = read_more(body, behind, value)
    places += range(at - start, behind - start)
    return value, behind - start


def _is_uniform(body: bytes, start: int, end: int, stride: int, layout: _Layout, index: int) -> bool:
    """Tell whether all records from `start` to `end` have the first one's sizes, and offset deltas from `index` on."""
    records = (end - start) // stride
    for at in layout.sizes:
        column = body[start + at : end : stride]
        if column != column[:1] * records:
            return False
    found = [body[start + at : end : stride] for at in layout.deltas]
    return found == _delta_columns(index, records)


def _delta_columns(index: int, records: int) -> list[bytes]:
    """Give the first, second, ... bytes of the offset deltas of so many records, which all have as many bytes."""
    if index < _ONE_BYTE_UNTIL:
        return [_SINGLE[index : index + records]]
    low = index % _ONE_BYTE_UNTIL
    columns = [_LOW[low : low + records]]
    if index < _TWO_BYTES_UNTIL:
        columns.append(_UPPER[index : index + records])
    else:
        middle = index % _TWO_BYTES_UNTIL
        columns += _MIDDLE[middle : middle + records], bytes((index // _TWO_BYTES_UNTIL,)) * records
    return columns


def _same_width_until(index: int) -> int:
    """Give the next index whose offset delta has more bytes, or another third byte."""
    if index < _ONE_BYTE_UNTIL:
        return _ONE_BYTE_UNTIL
    return (index // _TWO_BYTES_UNTIL + 1) * _TWO_BYTES_UNTIL


def _extremes(columns: list[bytes]) -> tuple[int, int] | None:
    """Give the least and the greatest of varints whose bytes stand in columns; None if one is shorter or longer."""
    *leading, last = columns
    if not last.isascii() or any(column.translate(None, _HIGH) for column in leading):
        return None
    if all(column == column[:1] * len(column) for column in columns):
        rows = {tuple(column[0] for column in columns)}
    else:
        rows = set(zip(*columns, strict=True))
    values = [_value_of(row) for row in rows]
    return min(values), max(values)


def _value_of(row: tuple[int, ...]) -> int:
    value = 0
    for byte in reversed(row):
        value = value << 7 | byte & 127
    return (value >> 1) ^ -(value & 1)
