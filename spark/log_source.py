"""`format("duolog-log")`: a Spark source that reads the log's files beside the broker, in parallel, for back-fills.

    session.dataSource.register(DuologLog)
    session.read.format("duolog-log").option("http", "127.0.0.1:9644").option("topics", "orders").load()

    planning      POST /api/leases: which files, which offsets are visible and committed, and a hold on the files
    a task        one piece of a file of the log (`store/log/log_reader.py`), every unit checked by its CRC
    rows          those of Spark's Kafka source with `includeHeaders`, so `spark.messages.as_messages` takes them

    option            default
    http              127.0.0.1:9644             the broker's HTTP port; tasks renew the lease there
    token                                        for a broker that has `http.readers_file`: a topic is planned for whom
                                                 it may be read by
    topics                                       names, separated by commas; "subscribe" means the same
    startingOffsets   earliest                   or {"topic": {"queue": offset}}; -2 the first, -1 the last, as in Kafka
    endingOffsets     latest                     the same
    directory         what the broker says       the data directory, where tasks see it under another path
    splitBytes        67108864                   of a file, for one task
    leaseMs           the broker's, 600000       how long files are held behind a task's last sign of life
    withTimes         false                      three more columns: `stored`, when the broker appended the message
                                                 where it can be seen; `due`, when a delayed one was to be delivered,
                                                 which is not known of RocketMQ's delay levels, nor of Kafka's messages
                                                 in a topic of LogAppendTime; `born`, its producer's own timestamp,
                                                 of a delayed one

The files must be readable where tasks run. Every task reads its piece whole, so a topic that is a small part of the log
is read faster over the network. Rows are what was there at planning; for a stream take the Kafka source.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from duolog.protocol.convert.to_kafka import kafka_record
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.record_batch import Record, read_header
from duolog.protocol.kafka.record_reader import FIRST, open_batch, read_records
from duolog.protocol.rocketmq.messages import message, properties
from duolog.spark.broker_api import ApiError, BrokerApi
from duolog.spark.log_options import Offsets, read_options, with_times
from duolog.spark.messages import BORN_TIMESTAMP
from duolog.store.log.format import Entry
from duolog.store.log.log_reader import LogReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCHEMA: Final = """
    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,
    headers array<struct<key: string, value: binary>>
"""
TIMES: Final = ", stored timestamp, due timestamp, born timestamp"
ROWS_MAX: Final = 8192  # of one Arrow batch
ROW_BYTES_MAX: Final = 16 << 20  # of keys and values of one Arrow batch, unless one row is larger
_CREATE_TIME, _LOG_APPEND_TIME = 0, 1
_TIME: Final = re.compile(r"[0-9]{1,15}")  # milliseconds that a timestamp of Arrow can be
_ENDS: Final = {-2: "start", -1: "end"}


class DuologLog(DataSource):
    """The source, as Spark knows it."""

    @classmethod
    def name(cls) -> str:
        return "duolog-log"

    def schema(self) -> str:
        return SCHEMA + TIMES if with_times(self.options) else SCHEMA

    def reader(self, schema: StructType) -> LogScan:
        # Here, and not with the partitions: Spark pickles the reader before it asks for those.
        return LogScan(plan(self.options))


# -- Planning


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What is to be read of one queue, and what was aborted in it."""

    topic: str
    queue: int
    start: int
    end: int
    is_log_append_time: bool
    aborted: Mapping[int, Sequence[tuple[int, int]]]  # producer id -> (first offset, offset of the marker)

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        return any(first <= offset < marker for first, marker in self.aborted.get(producer_id, ()))


@dataclass(frozen=True, slots=True)
class Plan:
    """What all tasks of a scan know."""

    http: str
    token: str  # For `http.readers_file`; "": none.
    lease: str
    lease_ms: int
    directory: str
    inflate_bytes_max: int
    kafka_form: int
    rocketmq_form: int
    with_times: bool
    queues: Mapping[int, QueueRange]  # by the queue's key in the log
    pieces: Sequence[Piece]


class Piece(InputPartition):
    """A part of a file of the log: the units that begin in [start, end)."""

    def __init__(self, path: str, first: int, start: int, end: int) -> None:
        super().__init__(None)
        self.path, self.first, self.start, self.end = path, first, start, end


def plan(options: Mapping[str, str]) -> Plan:
    """Take a lease and cut the files into pieces. Raises ApiError, ValueError for an option that is wrong."""
    asked = read_options(options)
    wanted: dict[str, Any] = {"topics": asked.topics}
    if asked.lease_ms is not None:
        wanted["lease_ms"] = asked.lease_ms
    found = BrokerApi(asked.http, asked.token).post("/api/leases", body=wanted)
    queues = {each["key"]: _queue_range(each, asked.starting, asked.ending) for each in found["queues"]}
    return Plan(
        asked.http,
        asked.token,
        found["lease"],
        found["lease_ms"],
        asked.directory or found["directory"],
        found["inflate_bytes_max"],
        found["forms"]["kafka"],
        found["forms"]["rocketmq"],
        asked.with_times,
        {key: range_ for key, range_ in queues.items() if range_.start < range_.end},
        [piece for segment in found["segments"] for piece in _pieces(segment, asked.split_bytes)],
    )


def _queue_range(found: Mapping[str, Any], starting: Offsets, ending: Offsets) -> QueueRange:
    topic, queue = found["topic"], found["queue"]

    def place(wanted: Offsets, default: int) -> int:
        offset = wanted.get(topic, {}).get(str(queue), default)
        return int(found[_ENDS[offset]]) if offset in _ENDS else offset

    start, end = place(starting, -2), place(ending, -1)
    if start < found["start"] or end > found["end"]:
        raise ValueError(
            f"duolog-log: offsets {start} to {end} of {topic}/{queue} were asked for, and the log has "
            f"{found['start']} to {found['end']}"
        )
    aborted: dict[int, list[tuple[int, int]]] = {}
    for producer_id, first, marker in found["aborted"]:
        aborted.setdefault(producer_id, []).append((first, marker))
    return QueueRange(topic, queue, start, end, found["log_append_time"], aborted)


def _pieces(segment: Mapping[str, Any], split_bytes: int) -> Iterator[Piece]:
    first, end = segment["start"], segment["end"]
    for start in range(first, end, split_bytes):
        yield Piece(segment["path"], first, start, min(start + split_bytes, end))


# -- Reading


class LogScan(DataSourceReader):
    """Reads the pieces of a plan; it travels to the tasks."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        return list(self._plan.pieces) if self._plan.queues else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Piece):
            return  # There is nothing to read: Spark plans one task all the same.
        plan = self._plan
        lease = _Lease(plan)
        rows = _Rows(plan.with_times)
        range_of = plan.queues.get
        with LogReader(plan.directory) as reader:
            lease.renew()
            for unit in reader.units(partition.path, partition.first, partition.start, partition.end):
                for entry in unit.entries():
                    range_ = range_of(entry.key)
                    if range_ is None:
                        continue
                    if entry.form == plan.rocketmq_form:
                        self._take_message(entry, range_, rows)
                    elif entry.form == plan.kafka_form:
                        self._take_batch(entry, range_, unit.header.stored_ms, rows)
                if rows.is_full:
                    yield rows.batch()
                lease.renew_sometimes()
            if rows.records:
                yield rows.batch()

    def _take_message(self, entry: Entry, range_: QueueRange, rows: _Rows) -> None:
        """Add a RocketMQ message, as the broker converts it for Kafka's clients."""
        frame, offset, is_log_append_time = entry.frame, entry.base_offset, range_.is_log_append_time
        if not range_.start <= offset < range_.end:
            return
        try:
            record = kafka_record(
                frame, offset, inflate_bytes_max=self._plan.inflate_bytes_max, log_append_time=is_log_append_time
            )
        except ProtocolError as error:
            raise _unreadable("message", range_, entry, error) from None
        times = (_times_of_message(frame),) if self._plan.with_times else ()
        rows.add(range_, (record,), _LOG_APPEND_TIME if is_log_append_time else _CREATE_TIME, len(frame), times)

    def _take_batch(self, entry: Entry, range_: QueueRange, stored_ms: int, rows: _Rows) -> None:
        """Add the records of a Kafka batch, unless it is a marker or was aborted."""
        if entry.base_offset >= range_.end or entry.base_offset + entry.count <= range_.start:
            return
        header = read_header(entry.frame)
        if header.is_control or (header.is_transactional and range_.is_aborted(header.producer_id, header.base_offset)):
            return
        try:
            opened = open_batch(entry.frame, self._plan.inflate_bytes_max)
            records, _ = read_records(opened, FIRST, header.record_count)
        except ProtocolError as error:
            raise _unreadable("batch", range_, entry, error) from None
        times: Sequence[Times] = ()
        if self._plan.with_times:
            times = [_times_of_record(record, stored_ms, header.is_log_append_time) for record in records]
        if records[0].offset < range_.start or records[-1].offset >= range_.end:
            inside = [range_.start <= record.offset < range_.end for record in records]
            records, times = list(compress(records, inside)), list(compress(times, inside))
        type_ = _LOG_APPEND_TIME if header.is_log_append_time else _CREATE_TIME
        rows.add(range_, records, type_, len(opened.body), times)


def _unreadable(what: str, range_: QueueRange, entry: Entry, error: ProtocolError) -> ValueError:
    place = f"{range_.topic}/{range_.queue} at offset {entry.base_offset}"
    return ValueError(f"duolog-log: the {what} of {place} cannot be read: {error}")


class Times(NamedTuple):
    """When a message was appended where it can be seen; and of a delayed one when it was due, when it was made."""

    stored_ms: int
    due_ms: int | None = None
    born_ms: int | None = None


def _times_of_record(record: Record, stored_ms: int, is_log_append_time: bool) -> Times:
    """Give the times of a Kafka message: of a delayed one the timestamp is the due time, its own is in a header.

    In a topic of LogAppendTime the timestamp is the store time, and the due time is not known.
    """
    if is_log_append_time:
        return Times(stored_ms)
    for name, value in record.headers:
        if name == BORN_TIMESTAMP:
            born = (value or b"").decode("latin-1")  # Who copies headers may have changed it.
            return Times(stored_ms, record.timestamp_ms, int(born) if _TIME.fullmatch(born) else None)
    return Times(stored_ms)


def _times_of_message(frame: memoryview) -> Times:
    due = properties.get(message.properties_of(frame), properties.TIMER_OUT_MS)
    if due is None or not _TIME.fullmatch(due):
        return Times(message.store_ms_of(frame))
    return Times(message.store_ms_of(frame), int(due), message.born_ms_of(frame))


class _Rows:
    """The rows of the next Arrow batch."""

    def __init__(self, with_times: bool) -> None:
        self.records: list[Record] = []
        self._bytes = 0
        self._with_times = with_times
        self._runs: list[
            tuple[QueueRange, int]
        ] = []  # whose, and the timestamp's type, of records that follow each other
        self._starts: list[int] = []  # of the runs
        self._last: QueueRange | None = None  # that of the last run
        self._times: list[Times] = []

    @property
    def is_full(self) -> bool:
        return len(self.records) >= ROWS_MAX or self._bytes >= ROW_BYTES_MAX

    def add(
        self, range_: QueueRange, records: Sequence[Record], timestamp_type: int, size: int, times: Sequence[Times]
    ) -> None:
        """Add records of one queue, of so many bytes together."""
        if range_ is not self._last or timestamp_type != self._runs[-1][1]:
            self._last = range_
            self._runs.append((range_, timestamp_type))
            self._starts.append(len(self.records))
        self.records += records
        self._times += times
        self._bytes += size

    def batch(self) -> pa.RecordBatch:
        """Give the rows as Arrow has them, and begin anew."""
        import pyarrow as pa

        offsets, timestamps_ms, keys, values, headers = zip(*self.records, strict=True)
        topics: list[str] = []
        queues: list[int] = []
        types: list[int] = []
        for (range_, timestamp_type), start, end in zip(
            self._runs, self._starts, (*self._starts[1:], len(self.records)), strict=True
        ):
            count = end - start
            topics += (range_.topic,) * count
            queues += (range_.queue,) * count
            types += (timestamp_type,) * count
        columns = {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array(queues, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": _timestamps(timestamps_ms),
            "timestampType": pa.array(types, pa.int32()),
            "headers": _header_array(headers),
        }
        if self._with_times:
            columns |= {
                "stored": _timestamps([times.stored_ms for times in self._times]),
                "due": _timestamps([times.due_ms for times in self._times]),
                "born": _timestamps([times.born_ms for times in self._times]),
            }
        self.records, self._runs, self._starts, self._times, self._bytes, self._last = [], [], [], [], 0, None
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _timestamps(at_ms: Sequence[int | None]) -> pa.Array:
    import pyarrow as pa

    return pa.array(at_ms, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _header_array(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> pa.Array:
    """Give lists of headers; null for a record without, as Spark's Kafka source has it."""
    import pyarrow as pa

    sizes = list(map(len, headers))
    pairs = list(chain.from_iterable(headers))
    names, values = zip(*pairs, strict=True) if pairs else ((), ())
    ends = list(accumulate(sizes, initial=0))
    fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    pairs = pa.StructArray.from_arrays([pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=fields)
    mask = pa.array([not size for size in sizes], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, mask=mask)


class _Lease:
    """The hold on the files, renewed while a task reads."""

    def __init__(self, plan: Plan) -> None:
        self._api = BrokerApi(plan.http, plan.token)
        self._id = plan.lease
        self._interval_s = plan.lease_ms / 3000
        self._renewed = time.perf_counter()

    def renew(self) -> None:
        try:
            self._api.post("/api/leases", self._id)
        except ApiError as error:
            raise RuntimeError(f"duolog-log: the hold on the log's files is gone: {error}") from None
        self._renewed = time.perf_counter()

    def renew_sometimes(self) -> None:
        if time.perf_counter() - self._renewed > self._interval_s:
            self.renew()
