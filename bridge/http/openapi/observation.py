"""The answers and operations of the routes that show what the broker does now (`bridge/http/observation/`)."""

from typing import Annotated, Final, Literal, TypedDict

from msgspec import Meta

from duolog.bridge.http.observation import clients, cron, log_lines
from duolog.bridge.http.openapi.operation import INTEGER, NO_GROUP, NO_TOPIC, TEXT, ApiOperation, Query, limit_of
from duolog.bridge.monitoring import last_lines


def _is(text: str) -> Meta:
    return Meta(description=text)


class WireRates(TypedDict):
    kafka: float
    rocketmq: float
    http: float


class HistoryInterval(TypedDict):
    """The rates of one interval, per second."""

    at_ms: Annotated[int, _is("The end of the interval.")]
    records_in: WireRates
    bytes_in: WireRates
    records_out: WireRates
    bytes_out: WireRates
    delivered: Annotated[int, _is("The number of delivered delayed messages.")]
    late_p50_ms: Annotated[
        float | None,
        _is("The median lateness of deliveries, rounded up to a bound of the histogram; null without deliveries."),
    ]
    late_p99_ms: Annotated[
        float | None,
        _is("The 99th percentile of the lateness, rounded up in the same way; null without deliveries."),
    ]
    fsync_ms: Annotated[float | None, _is("The mean duration of an fsync.")]
    long_turns: Annotated[int, _is("The number of turns of the event loop that took at least 100 ms.")]
    dead_letters: int
    given_up: Annotated[int, _is("The number of half messages that were given up without a verdict.")]


class HistoryAnswer(TypedDict):
    interval_ms: int
    intervals: list[HistoryInterval]


class WarningAnswer(TypedDict):
    kind: str
    text: str


class ClientAnswer(TypedDict):
    wire: Literal["kafka", "rocketmq"]
    peer: str
    client_id: Annotated[str, _is("The client id that the client has sent; empty if it has sent none.")]
    language: str
    groups: Annotated[
        list[str], _is("The consumer groups whose members use this connection or another one of the same client.")
    ]
    age_ms: int
    idle_ms: int
    last_request: str
    waiting_requests: Annotated[int, _is("The number of long polls that wait.")]
    unsent_bytes: int


class ClientList(TypedDict):
    count: Annotated[int, _is("The number of all connections.")]
    clients: list[ClientAnswer]


class LogLineAnswer(TypedDict):
    at_ms: int
    level: str
    component: str
    text: str


class AssignedQueues(TypedDict):
    topic: str
    queues: list[int]


class MemberAnswer(TypedDict):
    wire: Literal["kafka", "rocketmq"]
    member: Annotated[str, _is("Kafka's member id, or RocketMQ's client id.")]
    client_id: str
    instance_id: str | None
    host: str
    language: str
    topics: list[str]
    assignment: Annotated[list[AssignedQueues] | None, _is("null if the clients divide the queues among themselves.")]


class MemberList(TypedDict):
    group: str
    members: list[MemberAnswer]


class ReadingGroup(TypedDict):
    name: str
    active: Literal["kafka", "rocketmq"] | None
    members: int
    lag: Annotated[int, _is("The lag of the group in this topic.")]
    lag_without_position: int
    queues_without_position: int


class CronRun(TypedDict):
    due_ms: int
    local: Annotated[str, _is("The local time of the run in the time zone.")]


class ClockChange(TypedDict):
    at_ms: int
    before: Annotated[str, _is("The offset from UTC before the change.")]
    after: str
    runs: Annotated[list[CronRun], _is("The last runs before the change, and the first ones after it.")]


class CronPreview(TypedDict):
    expression: str
    zone: str
    runs: list[CronRun]
    changes: Annotated[list[ClockChange], _is("Changes of the zone's clock within a year after the first run.")]


OBSERVATION: Final[dict[tuple[str, str], ApiOperation]] = {
    ("GET", "/api/history"): ApiOperation(
        "Rates, and the lateness of deliveries, in the last hour.", answer=HistoryAnswer
    ),
    ("GET", "/api/warnings"): ApiOperation(
        "Conditions that need an operator now, or needed one within the last hour.", answer=list[WarningAnswer]
    ),
    ("GET", "/api/clients"): ApiOperation(
        "Open connections of clients, the oldest first.", answer=ClientList, queries=(limit_of(clients.CLIENTS_MAX),)
    ),
    ("GET", "/api/log"): ApiOperation(
        "The last lines of the broker's log, the oldest first.",
        answer=list[LogLineAnswer],
        queries=(
            limit_of(last_lines.LINES_MAX),
            Query("level", f"Only lines of this level or a higher one: {', '.join(log_lines.LEVELS)}.", TEXT),
            Query("component", "Only lines of this component.", TEXT),
            Query("search", "Only lines that contain this text, in upper or lower case.", TEXT),
        ),
    ),
    ("GET", "/api/groups/{name}/members"): ApiOperation(
        "The live members of a group, with their assignments.", answer=MemberList, statuses=NO_GROUP
    ),
    ("GET", "/api/topics/{name}/groups"): ApiOperation(
        "The groups of both client protocols that read a topic, with their lag in it.",
        answer=list[ReadingGroup],
        statuses=NO_TOPIC,
    ),
    ("GET", "/api/cron"): ApiOperation(
        "The next runs of a cron expression, and its runs around changes of the clock.",
        answer=CronPreview,
        queries=(
            Query("expression", "5 fields, or 6 with seconds first, or @daily.", TEXT, is_required=True),
            Query("zone", "The time zone.", TEXT | {"default": "UTC"}),
            Query("from_ms", "Runs at this time or later; by default now.", INTEGER),
            Query(
                "count",
                "The number of runs.",
                {"type": "integer", "minimum": 1, "maximum": cron.RUNS_MAX, "default": 10},
            ),
        ),
    ),
}
