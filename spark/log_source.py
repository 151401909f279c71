"""The Spark data source "duolog-log": reads the files of the log in parallel, without the broker, for back-fills.

    session.dataSource.register(DuologLog)
    session.read.format("duolog-log").option("http", "127.0.0.1:9644").option("topics", "orders").load()

For the plan, POST /api/leases returns the files, the visible and committed offsets, and a lease, which prevents the
removal of the files. A task reads a range of positions of one segment file (`store/log/log_reader.py`), and verifies
each unit by its CRC. The rows have the columns of Spark's Kafka source with `includeHeaders`, so
`spark.messages.as_messages` accepts them.

    option            default                   meaning
    http              127.0.0.1:9644            the HTTP port of the broker, where tasks also renew the lease
    token                                       the reader's token, if the broker has `http.readers_file`; it must allow
                                                all topics
    topics                                      topic names, separated by commas; `subscribe` has the same meaning
    startingOffsets   earliest                  earliest or {"topic": {"queue": offset}}; -2 is the log start offset, -1
                                                the end, as in Kafka
    endingOffsets     latest                    latest or offsets as above
    directory         the broker's              the path of the data directory on the machines where tasks run
    splitBytes        67108864                  bytes of a file that one task reads
    leaseMs           the broker's, 600000      how long the lease lasts after it was last renewed
    shared                                      the URL of the broker's --shared: tasks read the objects of the shared
                                                log, and no file of a broker (`spark/log_pieces.py`)
    endpoint, region  the provider's            address of that object store, region of its bucket; credentials come
                                                from the environment of the tasks
    withTimes         false                     three more columns: `stored`, the store time; `due`, the due time of a
                                                delayed message, null for RocketMQ's delay levels and Kafka messages in
                                                a topic with LogAppendTime; `born`, the original timestamp of a delayed
                                                message

The files, or the object store, must be readable where tasks run. A task reads all messages in its range, so a topic
that is a small part of the log is read faster through the Kafka source. The rows are the messages at the time of
planning; to read a stream, use the Kafka source.
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
from duolog.spark.log_pieces import Piece, file_ranges, pieces, shared_ranges, shared_reader
from duolog.spark.messages import BORN_TIMESTAMP
from duolog.store.log.format import Entry
from duolog.store.log.log_reader import LogReader
from duolog.store.objects.options import ObjectStoreOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCHEMA: Final = """
    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,
    headers array<struct<key: string, value: binary>>
"""
TIMES: Final = ", stored timestamp, due timestamp, born timestamp"
ROWS_MAX: Final = 8192  # Rows of one Arrow batch.
ROW_BYTES_MAX: Final = 16 << 20  # Bytes of keys and values in one Arrow batch, unless a single row is larger.
_CREATE_TIME, _LOG_APPEND_TIME = 0, 1
_TIME: Final = re.compile(r"[0-9]{1,15}")  # Milliseconds within the range of Arrow's timestamps.
_ENDS: Final = {-2: "start", -1: "end"}


class DuologLog(DataSource):
    """The data source, which Spark registers by its name."""

    @classmethod
    def name(cls) -> str:
        return "duolog-log"

    def schema(self) -> str:
        return SCHEMA + TIMES if with_times(self.options) else SCHEMA

    def reader(self, schema: StructType) -> LogScan:
        # The plan is made here and not in `partitions`, because Spark pickles the reader before it calls `partitions`.
        return LogScan(plan(self.options))


# -- Planning


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The offsets to read from one queue, and the transactions that were aborted in it."""

    topic: str
    queue: int  # The queue id.
    start: int  # The first offset to read.
    end: int  # The offset after the last one to read.
    is_log_append_time: bool
    aborted: Mapping[int, Sequence[tuple[int, int]]]  # Producer id -> (first offset, marker offset) of transactions.

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Return whether the record of a transactional producer at this offset was aborted."""
        return any(first <= offset < marker for first, marker in self.aborted.get(producer_id, ()))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a scan, which all its tasks receive."""

    http: str  # HOST:PORT of the broker's HTTP port.
    token: str  # The reader's token; empty for none.
    lease: str  # The id of the lease.
    lease_ms: int
    directory: str
    inflate_bytes_max: int
    kafka_form: int
    rocketmq_form: int
    with_times: bool
    shared: ObjectStoreOptions | None  # The object store to read; None: the files of the directory are read.
    queues: Mapping[int, QueueRange]  # By queue key.
    pieces: Sequence[Piece]


def plan(options: Mapping[str, str]) -> Plan:
    """Take a lease and cut the files into pieces. Raises ApiError, ValueError for an option that is wrong."""
    asked = read_options(options)
    wanted: dict[str, Any] = {"topics": asked.topics}
    if asked.lease_ms is not None:
        wanted["lease_ms"] = asked.lease_ms
    found = BrokerApi(asked.http, asked.token).post("/api/leases", body=wanted)
    queues = {each["key"]: _queue_range(each, asked.starting, asked.ending) for each in found["queues"]}
    segments = found["segments"]
    ranges = file_ranges(segments) if asked.shared is None else shared_ranges(asked.shared, found["stream"], segments)
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
        asked.shared,
        {key: range_ for key, range_ in queues.items() if range_.start < range_.end},
        [*pieces(ranges, asked.split_bytes)],
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
        with LogReader(plan.directory) if plan.shared is None else shared_reader(plan.shared) as reader:
            lease.renew()
            for unit in chain.from_iterable(map(reader.units, partition.ranges)):
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
    """The values of the columns `stored`, `due` and `born` of one message, in milliseconds."""

    stored_ms: int
    due_ms: int | None = None
    born_ms: int | None = None


def _times_of_record(record: Record, stored_ms: int, is_log_append_time: bool) -> Times:
    """Return the times of a Kafka message. The timestamp of a delayed message is its due time.

    Its original timestamp is in the header __BORN_TIMESTAMP. In a topic with LogAppendTime the timestamp is the store
    time, and the due time is not stored.
    """
    if is_log_append_time:
        return Times(stored_ms)
    for name, value in record.headers:
        if name == BORN_TIMESTAMP:
            born = (value or b"").decode("latin-1")  # A producer may have set any value.
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
        # (range, timestamp type) of each run: consecutive records with the same queue and timestamp type.
        self._runs: list[tuple[QueueRange, int]] = []
        self._starts: list[int] = []  # The index of the first record of each run.
        self._last: QueueRange | None = None  # The range of the last run.
        self._times: list[Times] = []

    @property
    def is_full(self) -> bool:
        return len(self.records) >= ROWS_MAX or self._bytes >= ROW_BYTES_MAX

    def add(
        self, range_: QueueRange, records: Sequence[Record], timestamp_type: int, size: int, times: Sequence[Times]
    ) -> None:
        """Add records of one queue, which have `size` bytes in total."""
        if range_ is not self._last or timestamp_type != self._runs[-1][1]:
            self._last = range_
            self._runs.append((range_, timestamp_type))
            self._starts.append(len(self.records))
        self.records += records
        self._times += times
        self._bytes += size

    def batch(self) -> pa.RecordBatch:
        """Return the rows as an Arrow batch, and remove them from this object."""
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
    """Return the column of headers, with null for a record without headers, as in Spark's Kafka source."""
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
    """The lease on the files, which a task renews while it reads."""

    def __init__(self, plan: Plan) -> None:
        self._api = BrokerApi(plan.http, plan.token)
        self._id = plan.lease
        self._interval_s = plan.lease_ms / 3000
        self._renewed = time.perf_counter()

    def renew(self) -> None:
        try:
            self._api.post("/api/leases", self._id)
        except ApiError as error:
            raise RuntimeError(f"duolog-log: the lease on the files of the log could not be renewed: {error}") from None
        self._renewed = time.perf_counter()

    def renew_sometimes(self) -> None:
        if time.perf_counter() - self._renewed > self._interval_s:
            self.renew()
