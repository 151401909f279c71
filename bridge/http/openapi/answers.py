"""The types of the HTTP API's answers: one type for each JSON object, for the OpenAPI document.

Handlers build plain dicts. `tests/unit/bridge/http/test_openapi.py` compares real answers with these types, so a field
that is added to an answer must be added here. Times are wall milliseconds. Offsets count records, positions bytes.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta


def _is(text: str) -> Meta:
    return Meta(description=text)


class Error(TypedDict):
    error: Annotated[str, _is("What was wrong, with which value, and what to do.")]


# -- The broker


class LogStatus(TypedDict):
    next_position: Annotated[int, _is("The position of the next unit.")]
    written: Annotated[int, _is("The log below this position was handed to the operating system.")]
    durable: Annotated[int, _is("The log below this position survives a power loss.")]
    flush: Literal["sync", "async"]


class RecoveryStatus(TypedDict):
    clean: Annotated[bool, _is("Whether the run before this one ended in order.")]
    checkpoint_position: Annotated[
        int, _is("The position of the checkpoint that was read; -1: the whole log was read.")
    ]
    end_position: int
    units: Annotated[int, _is("Units that were read after the checkpoint.")]
    entries: int
    cut_bytes: Annotated[int, _is("Bytes of a torn end that were removed.")]
    segments: int
    queues: int
    epoch: Annotated[int, _is("The number of this run.")]


class MemoryBytes(TypedDict):
    resident: int
    anonymous: Annotated[int, _is("Resident memory that no file backs.")]


class DiskBytes(TypedDict):
    """The disk of the data directory, at the last check."""

    used: int
    total: int


# The class has more than 15 fields because it describes the whole broker in one object.
class Status(TypedDict):
    version: str
    pid: int
    cluster_id: str
    role: Annotated[Literal["owner", "standby"], _is("An owner serves; a standby follows an owner's log.")]
    owner: Annotated[dict[str, str] | None, _is("The owner's address of each port; null while none is known.")]
    epoch: Annotated[int, _is("The number of the owner's run.")]
    ready: Annotated[str, _is("`yes`, or the reason why the broker is not ready.")]
    uptime_ms: int
    listeners: Annotated[dict[str, str], _is("The address of each port.")]
    log: LogStatus
    recovery: RecoveryStatus
    topics: int
    groups: int
    connections: int
    overdue_ms: Annotated[
        int,
        _is(
            "For how long the earliest due delayed message waits for its delivery; those of paused topics do not count."
        ),
    ]
    memory_bytes: MemoryBytes
    disk_bytes: DiskBytes


class SettingAnswer(TypedDict):
    name: str
    value: Annotated[str | int | float | bool, _is("`(hidden)`: the value is a secret.")]
    default: Annotated[str, _is("The default as text.")]
    source: Literal["default", "file", "environment", "command line", "run time"]


class ReloadedSettings(TypedDict):
    reloaded: Annotated[list[str], _is("What has changed: `name:value`.")]
    need_restart: Annotated[list[str], _is("Settings that change at the next start.")]


class LogLevels(TypedDict):
    level: Annotated[str, _is("The least severity of components that have none of their own.")]
    levels: Annotated[dict[str, str], _is("That of the other components.")]


class SegmentAnswer(TypedDict):
    start: int
    end: Annotated[int | None, _is("null: the segment that the log is written to.")]
    is_gap: Annotated[bool, _is("Whether this is a range of the log that retention removed.")]
    path: str


class SetAsideRecordAnswer(TypedDict):
    kind: str
    place: str
    error: str
    at_ms: Annotated[int | None, _is("When the record was set aside; null: while the log was replayed.")]
    is_acknowledged: Annotated[bool, _is("Whether an operator has acknowledged the record.")]


class SetAsideRecords(TypedDict):
    counts: Annotated[dict[str, int], _is("The number of records that were set aside, by kind.")]
    records: list[SetAsideRecordAnswer]


class Acknowledged(TypedDict):
    acknowledged: Annotated[int, _is("The number of records that were acknowledged now.")]


# -- Topics


class TopicSummary(TypedDict):
    name: str
    kafka_name: str
    rocketmq_name: str
    queues: Annotated[int, _is("The number of queues.")]
    records: int
    size_bytes: int
    records_per_second: Annotated[float | None, _is("The mean of the last ten seconds; null if it is not known yet.")]
    is_system: bool


class QueueOffsets(TypedDict):
    queue: int
    start: Annotated[int, _is("The log start offset.")]
    end: Annotated[int, _is("The offset after the last visible record.")]
    size_bytes: int
    epoch: Annotated[int, _is("The leader epoch.")]


class TopicAnswer(TypedDict):
    name: str
    kafka_name: str
    rocketmq_name: str
    records: int
    size_bytes: int
    records_per_second: Annotated[float | None, _is("The mean of the last ten seconds; null if it is not known yet.")]
    is_system: bool
    id: str
    number: int
    created_ms: int
    configs: Annotated[dict[str, str], _is("The configs that were set for this topic.")]
    is_paused: Annotated[bool, _is("Whether deliveries of delayed messages are paused.")]
    queues: list[QueueOffsets]


class DeletedTopic(TypedDict):
    deleted: str


class RangeSum(TypedDict):
    start: int
    end: int
    records: Annotated[int, _is("Committed records in this range.")]
    checksum: Annotated[int, _is("The sum of the records' checksums.")]


class QueueSums(TypedDict):
    queue: int
    start: int
    next: Annotated[int, _is("The `start` of the next request.")]
    absent: Annotated[list[tuple[int, int]], _is("Ranges of offsets that are no committed records.")]
    sums: list[RangeSum]


class PausedTopic(TypedDict):
    topic: str
    is_paused: bool


# -- Messages


class Content(TypedDict):
    """Bytes that are text are in `key` and `value`; other bytes are in `key_base64` and `value_base64`."""

    key: NotRequired[str | None]
    key_base64: NotRequired[str]
    headers: NotRequired[dict[str, str]]
    value: NotRequired[str | None]
    value_base64: NotRequired[str]
    value_bytes: NotRequired[Annotated[int, _is("The size of a value of which only the beginning is shown.")]]


class MessageAnswer(Content):
    offset: int
    timestamp_ms: int
    tag: str | None


class PlacedMessage(MessageAnswer):
    topic: str
    queue: int


class Messages(TypedDict):
    queue: int
    start: Annotated[int, _is("The log start offset of the queue.")]
    end: Annotated[int, _is("The offset after the last committed record.")]
    next: Annotated[int, _is("The `offset` of the next request.")]
    messages: list[MessageAnswer]


class WrittenMessage(TypedDict):
    """A message without a time has `offset`; a delayed message has `id` and `due_ms`."""

    queue: int
    offset: NotRequired[int]
    id: NotRequired[str]
    due_ms: NotRequired[int]


class WrittenMessages(TypedDict):
    messages: list[WrittenMessage]


# -- Groups


class GroupSummary(TypedDict):
    name: str
    active: Annotated[Literal["kafka", "rocketmq"] | None, _is("The client protocol of the group's live members.")]
    members: int
    topics: list[str]
    lag: int
    lag_without_position: Annotated[int, _is("The part of the lag in queues without a committed offset.")]
    queues_without_position: int


class GroupPosition(TypedDict):
    topic: str
    queue: int
    position: Annotated[int | None, _is("The committed offset; null: none was committed.")]
    start: int
    end: int
    lag: int
    committed_ms: int | None


class GroupAnswer(GroupSummary):
    retries_waiting: int
    dead_letters: int
    positions: list[GroupPosition]


ResetPosition = TypedDict("ResetPosition", {"topic": str, "queue": int, "from": int | None, "to": int})


class Reset(TypedDict):
    group: str
    executed: bool
    positions: list[ResetPosition]


class DeletedGroup(TypedDict):
    group: str
    executed: bool
    positions: Annotated[int, _is("The number of committed offsets.")]


# -- Transactions


class TransactionRow(TypedDict):
    kind: Literal["kafka", "rocketmq"]
    id: Annotated[str, _is("A transactional id; of a half message TOPIC/ID, with a RocketMQ message's unique key.")]
    state: str
    age_ms: Annotated[int, _is("Since the transaction began; -1: none is open.")]
    producer: str
    checks: Annotated[int, _is("Check-backs that were made.")]
    last_asked: Annotated[
        str, _is("Client id and address of the RocketMQ producer that was asked last; empty: none since the start.")
    ]
    waits_for: str
    half_offset: NotRequired[int]


class TransactionQueue(TypedDict):
    topic: str
    queue: int
    first_offset: int | None
    stable_end: Annotated[int, _is("The last stable offset.")]


class TransactionAnswer(TransactionRow):
    timeout_ms: NotRequired[int]
    queues: NotRequired[list[TransactionQueue]]
    groups: NotRequired[Annotated[dict[str, int], _is("The number of offsets to commit, by group.")]]


class AbortedTransaction(TypedDict):
    aborted: str


class HalfMessageVerdict(TypedDict):
    """The body of a verdict on a half message."""

    verdict: Literal["commit", "rollback"]


class DecidedHalfMessage(TypedDict):
    topic: str
    id: str
    state: str


class DecidedByOffset(TypedDict):
    half_offset: int
    state: str


# -- Delayed and recurring messages


class AddedTimer(TypedDict):
    id: str
    topic: str
    queue: int
    due_ms: int


class TimerRow(Content):
    id: str
    topic: str | None
    queue: int
    due_ms: int
    form: Literal["kafka", "rocketmq"]
    bytes: int


class TimerList(TypedDict):
    timers: list[TimerRow]
    next: Annotated[str | None, _is("The `after` of the next request; null: there are no more.")]
    paused: Annotated[list[str], _is("Topics whose deliveries are paused.")]


class TimerAnswer(Content):
    id: str
    topic: str
    queue: int
    due_ms: int


class TimerCount(TypedDict):
    count: int


class TimerHistogram(TypedDict):
    from_ms: int
    step_ms: int
    counts: list[int]


class TimerCommandAnswer(TypedDict):
    outcome: Literal["cancelled", "rescheduled", "delivered", "not_found"]
    messages: NotRequired[Annotated[int, _is("How many messages were changed; only by topic and key.")]]


# The class has more than 15 fields because a schedule has those of a message and those of a rule.
class ScheduleAnswer(Content):
    name: str
    topic: str | None
    queue: int
    every_ms: NotRequired[int]
    start_ms: NotRequired[int | None]
    cron: NotRequired[str]
    zone: NotRequired[str]
    until_ms: int | None
    count: int | None
    missed: str
    next_ms: Annotated[int | None, _is("When the next run is due; null: the schedule has ended.")]
    runs: int


# The class has more than 15 fields because it has those of ScheduleAnswer.
class RegisteredSchedule(ScheduleAnswer):
    outcome: Literal["created", "unchanged", "replaced"]


class RemovedSchedule(TypedDict):
    outcome: Literal["removed"]


# -- Leases


class LeasedQueue(TypedDict):
    topic: str
    queue: int
    key: Annotated[int, _is("The key of the queue in the log.")]
    start: int
    end: int
    log_append_time: bool
    aborted: Annotated[
        list[tuple[int, int, int]], _is("Aborted transactions: producer id, first offset, marker offset.")
    ]


class LeasedSegment(TypedDict):
    start: int
    end: int
    path: str


class LeaseAnswer(TypedDict):
    lease: str
    lease_ms: int
    directory: str
    stream: Annotated[str, _is("The id of the stream in an object store that has the log; empty if there is none.")]
    inflate_bytes_max: int
    forms: Annotated[dict[str, int], _is("The number of each frame format in the log.")]
    queues: list[LeasedQueue]
    segments: list[LeasedSegment]


class Draining(TypedDict):
    wait_ms: int
    connections: Annotated[int, _is("The connections of clients that are open.")]


class BackupFile(TypedDict):
    path: str
    size: int


class BackupAnswer(TypedDict):
    lease: str
    lease_ms: int
    directory: str
    position: Annotated[int, _is("The log is written up to this position, and the backup ends there.")]
    segments: list[BackupFile]
    tables: list[BackupFile]


class RenewedLease(TypedDict):
    lease: str
    lease_ms: int


class ReleasedLease(TypedDict):
    released: str


class UserAnswer(TypedDict):
    name: str
    is_super: Annotated[bool, _is("Whether the user may do everything.")]
    groups: Annotated[list[str], _is("The groups of principals to which the user belongs.")]
    mechanisms: Annotated[list[str], _is("The SCRAM mechanisms for which a verifier is stored.")]
    has_secret_key: Annotated[bool, _is("Whether RocketMQ clients may use the name as access key.")]


class RemovedUser(TypedDict):
    removed: str


class QuotaAnswer(TypedDict):
    user: Annotated[str | None, _is("The user; empty: each without its own quotas; null: any.")]
    client_id: Annotated[str | None, _is("The client id; empty: each without its own quotas; null: any.")]
    limits: Annotated[dict[str, float], _is("The quotas by key.")]


class AddedRules(TypedDict):
    added: int


class RemovedRules(TypedDict):
    removed: int
