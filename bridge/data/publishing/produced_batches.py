"""Checks a Kafka batch of a Produce request, and sorts its records by what they ask for, before anything is appended.

    batch        header, size and CRC                                 `record_batch.check`
    records      inflated within limits, and checked                  `protocol/kafka/record_check.py`
    timestamps   within the topic's bounds; a header with a wrong greatest timestamp is corrected (LogValidator)
    headers      delays: `bridge/data/delayed/delay_headers.py`; expiry: `bridge/data/expiry.py`; half messages:
                 `bridge/data/half_frames.py`

Records are decoded only if a header key of one of them begins like the names of these headers. The check of the records
looks for such keys as it goes. The topic config `delay.headers=false` turns the search off.

The error for a refused batch names the records at fault (KIP-467), so that clients can send the others again.

`BatchChecker.opened_bytes` adds up the cost of checked batches, in bytes to inflate. `bridge/kafka/produce.py` holds
each request to a budget of such bytes.
"""

from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from duolog.bridge.config import Options
from duolog.bridge.data import expiry, half_frames, unknown_headers
from duolog.bridge.data.delayed.delay_headers import TIMER_NAMES, DelayParser
from duolog.bridge.data.expiry import ExpiryParser
from duolog.bridge.data.half_frames import HalfRequest
from duolog.bridge.data.publishing.refusals import check_may_produce
from duolog.bridge.data.unknown_headers import Sender, UnknownHeaders
from duolog.bridge.security.quotas.entity import QuotaClient
from duolog.bridge.state.topic_table import Topic
from duolog.delay.recurring import AMQ_NAMES
from duolog.delay.requested_delay import DelayRefused, RequestedDelay
from duolog.delay.timers import Timers
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_batch, record_reader
from duolog.protocol.kafka.compression import Codec, inflate
from duolog.protocol.kafka.record_batch import (
    HEADER_BYTES,
    TIMESTAMP_MS_MAX,
    BatchHeader,
    InvalidBatch,
    Reason,
    Record,
    RecordError,
)
from duolog.protocol.kafka.record_check import Checked, check_records
from duolog.protocol.kafka.record_reader import FIRST, OpenBatch
from duolog.store.entry import Buffer, new_tuple

T = TypeVar("T")

RECORDS_MAX: Final = 1 << 17  # In one batch, because the check of all records must not block the loop for long.
REBUILT_RECORDS_MAX: Final = 40_000  # In a batch with delayed records, because the others become a new batch.
RECORD_ERRORS_MAX: Final = 100  # In the answer for one batch.
_DECODED_COST_BYTES: Final = 512  # Decoding a record takes as long as inflating these bytes.
_REQUEST_COST_BYTES: Final = 8 << 10  # Storing a delayed record takes as long as inflating these bytes.
_SCHEDULE_COST_BYTES: Final = 256 << 10  # Reading a cron expression takes as long as inflating these bytes.
RECORDS_AT_ONCE: Final = 64  # Sorting or planning this many records takes one or two milliseconds.
NO_TIMESTAMP: Final = -1

NAMES: Final = tuple(prefix.encode() for prefix in unknown_headers.PREFIXES)  # The beginnings of the headers' names.
REQUEST_NAMES: Final = frozenset({*TIMER_NAMES, *AMQ_NAMES, *expiry.NAMES, half_frames.ID})


class BatchOrigin(NamedTuple):
    """The fields of a Produce request that apply to its batches."""

    sender: Sender | None = None  # The connection of the producer; None if the broker itself made the batch.
    transactional_id: str | None = None
    adds_partition: bool = False  # The batch itself adds its partition to the transaction (Produce version 12).
    allows_zstd: bool = True
    client: QuotaClient | None = None  # Whose quota its delayed records count in; None: no quota is set.
    wire: str = "kafka"  # The protocol in which its records count as received.


BROKER_ORIGIN: Final = BatchOrigin()  # The batch was made by the broker itself.
HTTP_ORIGIN: Final = BatchOrigin(wire="http")  # The broker made the batch of what an HTTP request has.


class RequestedRecords(NamedTuple):
    """The records of a batch by what they ask for."""

    visible: list[Record]  # At once.
    delayed: list[tuple[RequestedDelay, Record]]
    half: list[tuple[HalfRequest, Record]]
    expiring: set[int]  # The indexes of the records with an expiry.

    @property
    def needs_plan(self) -> bool:
        """Return whether the batch must be split, because some of its records are not visible at once."""
        return bool(self.delayed or self.half)


class CheckedBatch(NamedTuple):
    """A batch that may be appended. `requested` is None if none of its records is delayed, half, or has an expiry.

    `unsorted` has the records that must be sorted first. It is None if they are sorted or ask for nothing.
    """

    batch: Buffer
    header: BatchHeader
    requested: RequestedRecords | None
    unsorted: OpenBatch | None


class BatchChecker:
    """Checks produced batches."""

    def __init__(self, timers: Timers, unknown_headers: UnknownHeaders, options: Options) -> None:
        self._timers, self._unknown_headers = timers, unknown_headers
        self._delay_parser, self._expiry_parser = DelayParser(options.delay), ExpiryParser(options.delay)
        self._inflate_bytes_max = options.convert.inflate_bytes_max
        self._requests_max = options.delay.batch_delayed_max
        self._schedules_max = options.delay.batch_schedules_max
        # The cost of all batches since the start. A batch that does not inflate counts as the greatest allowed one.
        self.opened_bytes = 0

    def check(
        self,
        topic: Topic,
        batch: Buffer,
        now_ms: int,
        origin: BatchOrigin,
        *,
        sorts: bool = True,
    ) -> CheckedBatch:
        """Check the batch that a Produce request has for one partition of a topic.

        Without `sorts` the caller sorts `CheckedBatch.unsorted` by `sort`. Raises InvalidBatch, ProduceRefused,
        StoreError.
        """
        if not topic.may_produce:
            check_may_produce(topic)
        settings = topic.settings
        header = record_batch.check(batch, bytes_max=settings.max_message_bytes, records_max=RECORDS_MAX)
        data, start = batch, HEADER_BYTES
        if codec := header.codec:
            if codec == Codec.ZSTD and not origin.allows_zstd:
                raise InvalidBatch(Reason.COMPRESSION, "zstd needs Produce version 7")
            data, start = self._inflated(batch, header), 0
        checked = check_records(data, start, header, NAMES if settings.delay_headers else ())
        earliest_ms, latest_ms, has_null_key, has_name, cost_bytes = checked
        self.opened_bytes += cost_bytes
        if settings.compact and has_null_key:
            raise refused(Reason.INVALID, _without_key(topic, _opened(header, data, start)))
        if not settings.log_append_time and not (
            0 <= earliest_ms >= now_ms - settings.timestamp_before_max_ms
            and now_ms + settings.timestamp_after_max_ms >= latest_ms == header.max_timestamp
        ):
            _check_times(topic, _opened(header, data, start), checked, now_ms)
            if latest_ms != header.max_timestamp:
                batch = record_batch.with_max_timestamp(batch, latest_ms)
                header = record_batch.read_header(batch)
        if not has_name:
            return new_tuple(CheckedBatch, (batch, header, None, None))
        unsorted = _opened(header, data, start)
        if not sorts:
            return CheckedBatch(batch, header, None, unsorted)
        requested = run_to_end(self.sort(topic, unsorted, now_ms, origin.sender))
        return CheckedBatch(batch, header, requested, None)

    def _inflated(self, batch: Buffer, header: BatchHeader) -> bytes:
        try:
            body = inflate(header.codec, memoryview(batch)[HEADER_BYTES:], self._inflate_bytes_max)
        except ProtocolError as error:
            self.opened_bytes += self._inflate_bytes_max
            raise InvalidBatch(Reason.INVALID, str(error)) from error
        self.opened_bytes += len(body)
        return body

    def sort(
        self, topic: Topic, opened: OpenBatch, now_ms: int, sender: Sender | None
    ) -> Generator[None, None, RequestedRecords | None]:
        """Sort the records by what they ask for; return None if none of them is delayed, half, or has an expiry.

        The generator yields after RECORDS_AT_ONCE records, so that the loop may turn. Raises InvalidBatch, and
        TooManyTimers.
        """
        self._timers.check_room(0)  # This comes before the decoding, because refused producers soon try again.
        self.opened_bytes += opened.header.record_count * _DECODED_COST_BYTES
        requested, errors = RequestedRecords([], [], [], set()), list[RecordError]()
        request_count = schedule_count = 0
        # The loop is written without functions for its steps, because it runs for each record of such batches.
        for index, record in enumerate(_records(opened)):
            if index and not index % RECORDS_AT_ONCE:
                yield
            if not record.headers:
                requested.visible.append(record)
                continue
            names = {name for name, _ in record.headers}
            if has_request := not names.isdisjoint(REQUEST_NAMES):
                request_count += 1
                schedule_count += not names.isdisjoint(AMQ_NAMES)
                self._check_counts(request_count, schedule_count)
            try:
                if sender is not None:
                    self._unknown_headers.check(topic, names, sender)
                if has_request:
                    self._put(record, index, requested, now_ms)
                else:
                    requested.visible.append(record)
            except (DelayRefused, InvalidBatch) as error:
                errors.append(RecordError(index, str(error)))
                if len(errors) == RECORD_ERRORS_MAX:
                    break
            if opened.header.record_count > REBUILT_RECORDS_MAX and requested.needs_plan:
                raise InvalidBatch(
                    Reason.TOO_LARGE,
                    f"batch of {opened.header.record_count} records, some of them delayed; then {REBUILT_RECORDS_MAX} "
                    "are allowed",
                )
        self.opened_bytes += request_count * _REQUEST_COST_BYTES + schedule_count * _SCHEDULE_COST_BYTES
        if errors:
            raise refused(Reason.INVALID, errors)
        if requested.half and opened.header.is_transactional:
            raise InvalidBatch(Reason.INVALID, "a record of a transaction is no half message")
        return requested if requested.needs_plan or requested.expiring else None

    def _check_counts(self, request_count: int, schedule_count: int) -> None:
        if request_count > self._requests_max:
            raise InvalidBatch(
                Reason.TOO_LARGE,
                f"batch of more than {self._requests_max} records that are delayed, expire or are half messages; "
                "delay.batch_delayed_max is the limit",
            )
        if schedule_count > self._schedules_max:
            raise InvalidBatch(
                Reason.TOO_LARGE,
                f"batch of more than {self._schedules_max} records with AMQ_SCHEDULED_ headers; "
                "delay.batch_schedules_max is the limit",
            )

    def _put(self, record: Record, index: int, requested: RequestedRecords, now_ms: int) -> None:
        """Add a record to those that ask for the same. Raises DelayRefused, InvalidBatch."""
        delay = self._delay_parser.parse_headers(record.headers, now_ms)
        half = half_frames.parse_half_request(record.headers)
        if self._expiry_parser.parse_headers(record.headers, now_ms) is not None:
            requested.expiring.add(index)
        if half is not None:
            is_delayed = delay is not None and delay.schedule is None
            requested.half.append((half._replace(is_delayed=is_delayed), record))
        elif delay is not None:
            requested.delayed.append((delay, record))
        else:
            requested.visible.append(record)


def run_to_end(steps: Generator[None, None, T]) -> T:
    """Run all steps in this turn of the loop, where they are known to be few."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def _without_key(topic: Topic, opened: OpenBatch) -> list[RecordError]:
    message = f"no key, and topic {topic.name} is compacted"
    found = (RecordError(index, message) for index, record in enumerate(_records(opened)) if record.key is None)
    return list(islice(found, RECORD_ERRORS_MAX))


def refused(reason: Reason, errors: Sequence[RecordError]) -> InvalidBatch:
    """Make the error that refuses a batch because of some of its records."""
    index, message = errors[0]
    others = len(errors) - 1
    more = f" (and {others} more record{'s' if others > 1 else ''})" if others else ""
    return InvalidBatch(reason, f"record {index} of the batch{more}: {message}", errors)


def _opened(header: BatchHeader, data: Buffer, start: int) -> OpenBatch:
    return OpenBatch(header, bytes(memoryview(data)[start:]))


def _records(opened: OpenBatch) -> Iterator[Record]:
    mark = FIRST
    while mark.skipped < opened.header.record_count:
        some, mark = record_reader.read_records(opened, mark, RECORDS_AT_ONCE)
        yield from some


# -- Timestamps


def _check_times(topic: Topic, opened: OpenBatch, checked: Checked, now_ms: int) -> None:
    """Check the timestamp of each record against the topic's bounds; -1 means no timestamp. Raises InvalidBatch.

    Source: LogValidator.java#validateTimestamp.
    """
    settings = topic.settings
    earliest_ms = max(now_ms - settings.timestamp_before_max_ms, 0)
    latest_ms = min(now_ms + settings.timestamp_after_max_ms, TIMESTAMP_MS_MAX)
    if earliest_ms <= checked.earliest_ms and checked.latest_ms <= latest_ms:
        return
    if checked.earliest_ms == checked.latest_ms == NO_TIMESTAMP:
        return
    errors: list[RecordError] = []
    for index, record in enumerate(_records(opened)):
        time_ms = record.timestamp_ms
        if time_ms != NO_TIMESTAMP and not earliest_ms <= time_ms <= latest_ms:
            errors.append(RecordError(index, f"timestamp {time_ms} is outside {earliest_ms} to {latest_ms}"))
            if len(errors) == RECORD_ERRORS_MAX:
                break
    if errors:
        raise refused(Reason.TIMESTAMP, errors)
