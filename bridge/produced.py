"""Check one produced Kafka batch, and sort its records by what they ask for: before anything is appended.

    batch        header, size, CRC                                    `record_batch.check`
    records      inflated within limits, and checked                  `protocol/kafka/record_check.py`
    timestamps   inside the topic's bounds; a header that names another greatest timestamp is corrected (LogValidator)
    headers      what asks for a delay: `bridge/wishes.py`; for an expiry: `bridge/lifetimes.py`; for a half message of
                 Kafka's: `bridge/half_records.py`

All records of a compressed batch are checked. Of an uncompressed one the first few are, and more in a larger batch, so
that it costs a few percent of an append: all would cost 0.3 us each, several times what is spent on a small record.
`kafka.check_uncompressed` has them all checked.

Records are only decoded if the names of these headers occur in the batch: one search, 0.1 to 0.5 ns a byte, is what
they cost those who do not use them. The topic config `delay.headers` turns the search off.

Records that are refused are named in the error (KIP-467), so that clients can send the others again.

What the batches of one request cost is added up in `opened_bytes`, as bytes to inflate; `bridge/kafka/produce.py` holds
each request to a budget of it.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from bridge import half_records, lifetimes, unknown_names
from bridge.config import Options
from bridge.delays import Delays
from bridge.half_records import HalfWish
from bridge.lifetimes import Lifetimes
from bridge.topics import Topic
from bridge.unknown_names import Sender, UnknownNames
from bridge.wishes import TIMER_NAMES, DelayRefused, Wish
from delay.recurring import AMQ_NAMES
from protocol.errors import ProtocolError
from protocol.kafka import record_batch
from protocol.kafka.compression import Codec, inflate
from protocol.kafka.record_batch import (
    FIRST,
    HEADER_BYTES,
    TIMESTAMP_MS_MAX,
    BatchHeader,
    InvalidBatch,
    OpenBatch,
    Reason,
    Record,
    RecordError,
)
from protocol.kafka.record_check import Walked, check_records
from store.entry import Buffer

RECORDS_MAX: Final = 1 << 17  # of one batch: walking through all of them must not hold up the loop
FIRST_RECORDS: Final = 2  # of an uncompressed batch, which are always checked
BYTES_A_RECORD: Final = 16 << 10  # and one more for so many bytes of it: a check costs some percent of their append
REBUILT_RECORDS_MAX: Final = 40_000  # of a batch with delayed records: the others become a new batch, at 3 us each
RECORD_ERRORS_MAX: Final = 100  # of one batch; a producer meets the others when it sends the rest again
_RECORD_COST_BYTES: Final = 512  # walking through a record takes as long as inflating so much
_ASKING_COST_BYTES: Final = 8 << 10  # parking a record takes as long as inflating so much
_SCHEDULE_COST_BYTES: Final = 256 << 10  # and reading a cron expression
_RECORDS_AT_ONCE: Final = 64
NO_TIMESTAMP: Final = -1

_TIMER_PREFIX: Final = unknown_names.TIMER_PREFIX.encode()
_TIMER_UNDERSCORE_AT: Final = _TIMER_PREFIX.index(b"_")
_HALF_PREFIX: Final = unknown_names.HALF_PREFIX.encode()
_HALF_UNDERSCORE_AT: Final = _HALF_PREFIX.index(b"_")
_EXPIRY_PREFIX: Final = lifetimes.PREFIX.encode()
_EXPIRY_UNDERSCORE_AT: Final = _EXPIRY_PREFIX.index(b"_")  # Invariant: not before the others'.
_AMQ_PREFIX: Final = unknown_names.AMQ_PREFIX.encode()
_AMQ_UNDERSCORE_AT: Final = _AMQ_PREFIX.index(b"_")  # Invariant: not behind the others'.
_WISH_NAMES: Final = (_TIMER_PREFIX, _HALF_PREFIX, _AMQ_PREFIX, _EXPIRY_PREFIX)
_BYTES_AN_UNDERSCORE: Final = 4096  # With more of them than one in so many bytes, a search for the whole is faster.


ASKING_NAMES: Final = frozenset({*TIMER_NAMES, *AMQ_NAMES, *lifetimes.NAMES, half_records.ID})


class Parted(NamedTuple):
    """The records of a batch by what they ask for."""

    now: list[Record]
    later: list[tuple[Wish, Record]]
    half: list[tuple[HalfWish, Record]]
    expiring: set[int]  # the indexes of those that expire


class Produced(NamedTuple):
    """A batch that may be appended; `parted` is None if nothing of it is delayed or expires."""

    batch: Buffer
    header: BatchHeader
    parted: Parted | None


class Inspector:
    """Checks produced batches."""

    def __init__(self, delays: Delays, lifetimes: Lifetimes, options: Options) -> None:
        self._delays, self._lifetimes = delays, lifetimes
        self.unknown_names = UnknownNames()
        self._inflate_bytes_max = options.convert.inflate_bytes_max
        self._asking_max = options.delay.batch_delayed_max
        self._schedules_max = options.delay.batch_schedules_max
        self._checks_uncompressed = options.kafka.check_uncompressed
        # Inflated and walked through, ever; what does not inflate counts as the most that it may.
        self.opened_bytes = 0

    def check(self, topic: Topic, batch: Buffer, now_ms: int, sender: Sender | None, *, allows_zstd: bool) -> Produced:
        """Check what a Produce request has for one partition of a topic; `sender` is its connection, if it has one.

        Raises InvalidBatch, StoreError.
        """
        settings = topic.settings
        header = record_batch.check(batch, bytes_max=settings.max_message_bytes, records_max=RECORDS_MAX)
        if header.codec == Codec.ZSTD and not allows_zstd:
            raise InvalidBatch(Reason.COMPRESSION, "zstd needs Produce version 7")
        codec = header.codec
        body = self._inflated(batch, header) if codec else bytes(memoryview(batch)[HEADER_BYTES:])
        records_max = None
        if not (codec or settings.compact or self._checks_uncompressed):
            records_max = FIRST_RECORDS + len(body) // BYTES_A_RECORD
        walked = check_records(body, header, records_max)
        self.opened_bytes += walked.stepped * _RECORD_COST_BYTES
        if settings.compact and walked.has_null_key:
            raise refused(Reason.INVALID, _without_key(topic, OpenBatch(header, body)))
        if not settings.log_append_time and not _are_times_right(topic, header, walked, now_ms):
            batch, header = _with_right_times(topic, batch, OpenBatch(header, body), now_ms)
        parted = None
        if settings.delay_headers and _has_wish_name(body):
            parted = self._part(topic, OpenBatch(header, body), now_ms, sender)
        return Produced(batch, header, parted)

    def _inflated(self, batch: Buffer, header: BatchHeader) -> bytes:
        try:
            body = inflate(header.codec, memoryview(batch)[HEADER_BYTES:], self._inflate_bytes_max)
        except ProtocolError as error:
            self.opened_bytes += self._inflate_bytes_max
            raise InvalidBatch(Reason.INVALID, str(error)) from error
        self.opened_bytes += len(body)
        return body

    def _part(self, topic: Topic, opened: OpenBatch, now_ms: int, sender: Sender | None) -> Parted | None:
        """Sort the records; None if nothing of the batch is delayed or expires. Raises for those that are refused."""
        self._delays.check_room(0)  # Before records are decoded, for who is refused tries again soon.
        self.opened_bytes += opened.header.record_count * _RECORD_COST_BYTES
        parted, errors = Parted([], [], [], set()), list[RecordError]()
        asking = schedules = 0
        for index, record in enumerate(_sound(opened)):
            if not record.headers:
                parted.now.append(record)
                continue
            names = {name for name, _ in record.headers}
            if is_asking := not names.isdisjoint(ASKING_NAMES):
                asking += 1
                schedules += not names.isdisjoint(AMQ_NAMES)
                self._check_counts(asking, schedules)
            try:
                if sender is not None:
                    self.unknown_names.check(topic, names, sender)
                if is_asking:
                    self._put(record, index, parted, now_ms)
                else:
                    parted.now.append(record)
            except (DelayRefused, InvalidBatch) as error:
                errors.append(RecordError(index, str(error)))
                if len(errors) == RECORD_ERRORS_MAX:
                    break
            if opened.header.record_count > REBUILT_RECORDS_MAX and (parted.later or parted.half):
                raise InvalidBatch(
                    Reason.TOO_LARGE,
                    f"batch of {opened.header.record_count} records, some of them delayed; then {REBUILT_RECORDS_MAX} "
                    "are allowed",
                )
        self.opened_bytes += asking * _ASKING_COST_BYTES + schedules * _SCHEDULE_COST_BYTES
        if errors:
            raise refused(Reason.INVALID, errors)
        if parted.half and opened.header.is_transactional:
            raise InvalidBatch(Reason.INVALID, "a record of a transaction is no half message")
        if not (parted.later or parted.half):
            return parted if parted.expiring else None
        return parted

    def _check_counts(self, asking: int, schedules: int) -> None:
        if asking > self._asking_max:
            raise InvalidBatch(
                Reason.TOO_LARGE,
                f"batch of more than {self._asking_max} records that are delayed, expire or are half messages; "
                "delay.batch_delayed_max is the limit",
            )
        if schedules > self._schedules_max:
            raise InvalidBatch(
                Reason.TOO_LARGE,
                f"batch of more than {self._schedules_max} records with AMQ_SCHEDULED_ headers; "
                "delay.batch_schedules_max is the limit",
            )

    def _put(self, record: Record, index: int, parted: Parted, now_ms: int) -> None:
        """Put a record with headers to those that ask for the same. Raises DelayRefused, InvalidBatch."""
        wish = self._delays.wishes.of_headers(record.headers, now_ms)
        half = half_records.wish_of(record.headers)
        if self._lifetimes.of_headers(record.headers, now_ms) is not None:
            parted.expiring.add(index)
        if half is not None:
            parted.half.append((half, record))
        elif wish is not None:
            parted.later.append((wish, record))
        else:
            parted.now.append(record)


def _without_key(topic: Topic, opened: OpenBatch) -> list[RecordError]:
    message = f"no key, and topic {topic.name} is compacted"
    found = (RecordError(index, message) for index, record in enumerate(_records(opened)) if record.key is None)
    return list(islice(found, RECORD_ERRORS_MAX))


def refused(reason: Reason, errors: Sequence[RecordError]) -> InvalidBatch:
    """Give what refuses a batch for some of its records."""
    index, message = errors[0]
    others = len(errors) - 1
    more = f" (and {others} more record{'s' if others > 1 else ''})" if others else ""
    return InvalidBatch(reason, f"record {index} of the batch{more}: {message}", errors)


def _sound(opened: OpenBatch) -> Iterator[Record]:
    """Give the records of a batch of which some may not be checked yet. Raises InvalidBatch."""
    try:
        yield from _records(opened)
    except InvalidBatch:
        raise
    except ProtocolError as error:
        raise InvalidBatch(Reason.INVALID, str(error)) from error


def _records(opened: OpenBatch) -> Iterator[Record]:
    mark = FIRST
    while mark.skipped < opened.header.record_count:
        some, mark = record_batch.read_records(opened, mark, _RECORDS_AT_ONCE)
        yield from some


# -- Timestamps


def _are_times_right(topic: Topic, header: BatchHeader, walked: Walked, now_ms: int) -> bool:
    """Tell whether all records are within the topic's bounds, and the header names the greatest timestamp.

    Where not all records were walked through, by what the header says of them.
    """
    latest_ms = header.max_timestamp
    if walked.records < header.record_count:
        earliest_ms = header.base_timestamp
    elif walked.latest_ms != latest_ms:
        return False
    else:
        earliest_ms = walked.earliest_ms
    settings = topic.settings
    return (
        latest_ms <= now_ms + settings.timestamp_after_max_ms
        and earliest_ms >= now_ms - settings.timestamp_before_max_ms
        and earliest_ms >= 0
    )


def _with_right_times(topic: Topic, batch: Buffer, opened: OpenBatch, now_ms: int) -> tuple[Buffer, BatchHeader]:
    """Hold each record to the topic's bounds; -1 is no timestamp. Gives the batch with the greatest one in its header.

    Raises InvalidBatch. LogValidator.java#validateTimestamp
    """
    header, body = opened
    walked = check_records(body, header)
    settings = topic.settings
    earliest_ms = max(now_ms - settings.timestamp_before_max_ms, 0)
    latest_ms = min(now_ms + settings.timestamp_after_max_ms, TIMESTAMP_MS_MAX)
    if walked[:2] != (NO_TIMESTAMP, NO_TIMESTAMP) and not (
        earliest_ms <= walked.earliest_ms and walked.latest_ms <= latest_ms
    ):
        errors: list[RecordError] = []
        for index, record in enumerate(_records(opened)):
            time_ms = record.timestamp_ms
            if time_ms != NO_TIMESTAMP and not earliest_ms <= time_ms <= latest_ms:
                errors.append(RecordError(index, f"timestamp {time_ms} is outside {earliest_ms} to {latest_ms}"))
                if len(errors) == RECORD_ERRORS_MAX:
                    break
        if errors:
            raise refused(Reason.TIMESTAMP, errors)
    if walked.latest_ms == header.max_timestamp:
        return batch, header
    corrected = record_batch.with_max_timestamp(batch, walked.latest_ms)
    return corrected, record_batch.read_header(corrected)


# -- Headers


def _has_wish_name(data: bytes) -> bool:
    """Tell whether a prefix of the names that ask for a delay or an expiry occurs, or of those of a half message.

    A search for one byte (memchr) is twenty times as fast as one for nine. So the underscores are looked at one by one
    while they are few; where there are many, what is left is searched as a whole. From its end: Python's `rfind` leaps
    over what cannot be part of a match, and takes a half to a quarter of the time of `find`.
    """
    at = data.find(b"_", _AMQ_UNDERSCORE_AT)
    for _ in range(1 + len(data) // _BYTES_AN_UNDERSCORE):
        if at < 0:
            return False
        if (
            data.startswith(_TIMER_PREFIX, max(0, at - _TIMER_UNDERSCORE_AT))
            or data.startswith(_HALF_PREFIX, max(0, at - _HALF_UNDERSCORE_AT))
            or data.startswith(_AMQ_PREFIX, at - _AMQ_UNDERSCORE_AT)
            or data.startswith(_EXPIRY_PREFIX, max(0, at - _EXPIRY_UNDERSCORE_AT))
        ):
            return True
        at = data.find(b"_", at + 1)
    left = max(0, at - _EXPIRY_UNDERSCORE_AT)
    return at >= 0 and any(data.rfind(name, left) >= 0 for name in _WISH_NAMES)
