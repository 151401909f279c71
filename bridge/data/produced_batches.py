"""Check one produced Kafka batch, and sort its records by what they ask for: before anything is appended.

    batch        header, size, CRC                                    `record_batch.check`
    records      inflated within limits, and checked                  `protocol/kafka/record_check.py`
    timestamps   inside the topic's bounds; a header that names another greatest timestamp is corrected (LogValidator)
    headers      what asks for a delay: `bridge/data/delay_headers.py`; for an expiry: `bridge/data/expiry.py`; for a
    half message of
                 Kafka's: `bridge/data/half_frames.py`

Records are only decoded if one of their header keys begins like the names of these headers: the check of the records
looks for that on its way. The topic config `delay.headers` turns the search off.

Records that are refused are named in the error (KIP-467), so that clients can send the others again.

What the batches of one request cost is added up in `opened_bytes`, as bytes to inflate; `bridge/kafka/produce.py` holds
each request to a budget of it.
"""

from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from duolog.bridge.config import Options
from duolog.bridge.data import expiry as lifetimes
from duolog.bridge.data import half_frames, unknown_headers
from duolog.bridge.data.delay_headers import TIMER_NAMES, DelayRefused, Wish
from duolog.bridge.data.delays import Delays
from duolog.bridge.data.expiry import Lifetimes
from duolog.bridge.data.half_frames import HalfWish
from duolog.bridge.data.unknown_headers import Sender, UnknownNames
from duolog.bridge.state.topics import Topic
from duolog.delay.recurring import AMQ_NAMES
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_batch
from duolog.protocol.kafka.compression import Codec, inflate
from duolog.protocol.kafka.record_batch import (
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
from duolog.protocol.kafka.record_check import Checked, check_records
from duolog.store.entry import Buffer, new_tuple

T = TypeVar("T")

RECORDS_MAX: Final = 1 << 17  # of one batch: walking through all of them must not hold up the loop
REBUILT_RECORDS_MAX: Final = 40_000  # of a batch with delayed records: the others become a new batch, at 3 us each
RECORD_ERRORS_MAX: Final = 100  # of one batch; a producer meets the others when it sends the rest again
_DECODED_COST_BYTES: Final = 512  # decoding a record takes as long as inflating so much
_ASKING_COST_BYTES: Final = 8 << 10  # parking a record takes as long as inflating so much
_SCHEDULE_COST_BYTES: Final = 256 << 10  # and reading a cron expression
RECORDS_AT_ONCE: Final = 64  # To sort or park them takes one or two milliseconds.
NO_TIMESTAMP: Final = -1

NAMES: Final = tuple(prefix.encode() for prefix in unknown_headers.PREFIXES)  # how the headers' names begin
ASKING_NAMES: Final = frozenset({*TIMER_NAMES, *AMQ_NAMES, *lifetimes.NAMES, half_frames.ID})


class Parted(NamedTuple):
    """The records of a batch by what they ask for."""

    now: list[Record]
    later: list[tuple[Wish, Record]]
    half: list[tuple[HalfWish, Record]]
    expiring: set[int]  # the indexes of those that expire


class Produced(NamedTuple):
    """A batch that may be appended; `parted` is None if nothing of it is delayed or expires.

    `unsorted` are the records that are to be sorted first; None where that is done, or none of them asks for anything.
    """

    batch: Buffer
    header: BatchHeader
    parted: Parted | None
    unsorted: OpenBatch | None


class Inspector:
    """Checks produced batches."""

    def __init__(self, delays: Delays, lifetimes: Lifetimes, options: Options) -> None:
        self._delays, self._lifetimes = delays, lifetimes
        self.unknown_names = UnknownNames()
        self._inflate_bytes_max = options.convert.inflate_bytes_max
        self._asking_max = options.delay.batch_delayed_max
        self._schedules_max = options.delay.batch_schedules_max
        # Inflated and checked, ever; what does not inflate counts as the most that it may.
        self.opened_bytes = 0

    def check(
        self,
        topic: Topic,
        batch: Buffer,
        now_ms: int,
        sender: Sender | None,
        *,
        allows_zstd: bool,
        sorts: bool = True,
    ) -> Produced:
        """Check what a Produce request has for one partition of a topic; `sender` is its connection, if it has one.

        Without `sorts` the caller sorts the records, if need be, by `sort`. Raises InvalidBatch, StoreError.
        """
        settings = topic.settings
        header = record_batch.check(batch, bytes_max=settings.max_message_bytes, records_max=RECORDS_MAX)
        data, start = batch, HEADER_BYTES
        if codec := header.codec:
            if codec == Codec.ZSTD and not allows_zstd:
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
            return new_tuple(Produced, (batch, header, None, None))
        unsorted = _opened(header, data, start)
        if not sorts:
            return Produced(batch, header, None, unsorted)
        return Produced(batch, header, at_once(self.sort(topic, unsorted, now_ms, sender)), None)

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
    ) -> Generator[None, None, Parted | None]:
        """Sort the records; None if nothing of the batch is delayed or expires. Raises for those that are refused.

        It yields after RECORDS_AT_ONCE records: the loop may turn.
        """
        self._delays.check_room(0)  # Before records are decoded, for who is refused tries again soon.
        self.opened_bytes += opened.header.record_count * _DECODED_COST_BYTES
        parted, errors = Parted([], [], [], set()), list[RecordError]()
        asking = schedules = 0
        for index, record in enumerate(_records(opened)):
            if index and not index % RECORDS_AT_ONCE:
                yield
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
        half = half_frames.wish_of(record.headers)
        if self._lifetimes.of_headers(record.headers, now_ms) is not None:
            parted.expiring.add(index)
        if half is not None:
            parted.half.append((half, record))
        elif wish is not None:
            parted.later.append((wish, record))
        else:
            parted.now.append(record)


def at_once(steps: Generator[None, None, T]) -> T:
    """Do all steps in this turn of the loop, where they are known to be few."""
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
    """Give what refuses a batch for some of its records."""
    index, message = errors[0]
    others = len(errors) - 1
    more = f" (and {others} more record{'s' if others > 1 else ''})" if others else ""
    return InvalidBatch(reason, f"record {index} of the batch{more}: {message}", errors)


def _opened(header: BatchHeader, data: Buffer, start: int) -> OpenBatch:
    return OpenBatch(header, bytes(memoryview(data)[start:]))


def _records(opened: OpenBatch) -> Iterator[Record]:
    mark = FIRST
    while mark.skipped < opened.header.record_count:
        some, mark = record_batch.read_records(opened, mark, RECORDS_AT_ONCE)
        yield from some


# -- Timestamps


def _check_times(topic: Topic, opened: OpenBatch, checked: Checked, now_ms: int) -> None:
    """Hold each record to the topic's bounds; -1 is no timestamp. Raises InvalidBatch.

    LogValidator.java#validateTimestamp
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
