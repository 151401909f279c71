"""The operations of the HTTP API by method and path: their texts, parameters and error statuses.

`tests/unit/bridge/http/test_openapi.py` compares the rows with the router and the parameters with the handlers.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from duolog.bridge.http import requests
from duolog.bridge.http.answers import Json
from duolog.bridge.http.api import groups, leases, messages, pending, schedules, status, timers, topics
from duolog.bridge.http.openapi import answers

INTEGER: Final = {"type": "integer", "minimum": 0}
TEXT: Final = {"type": "string"}
BOOLEAN: Final = {"type": "boolean", "default": False}


class Query(NamedTuple):
    """One parameter of the query string."""

    name: str
    description: str
    schema: Json = INTEGER
    is_required: bool = False


class Operation(NamedTuple):
    """The description of one method of one path. If `answer` is None, the answer is plain text."""

    summary: str
    answer: Any = None
    description: str = ""
    body: Any = None  # A tuple means: one of these types.
    is_body_optional: bool = False
    queries: tuple[Query, ...] = ()
    status: int = 200
    statuses: Mapping[int, str] = MappingProxyType({})
    headers: tuple[Query, ...] = ()


# -- Parameters of several operations

TOPIC: Final = Query("topic", "Only messages for this topic.", TEXT)
KEY: Final = Query("key", "Only messages with this key; needs `topic`.", TEXT)
FROM_MS: Final = Query("from_ms", "Only messages that are due at this time or later.")
UNTIL_MS: Final = Query("until_ms", "Only messages that are due before this time.")


def _limit(highest: int) -> Query:
    return Query("limit", "The number of rows.", {"type": "integer", "minimum": 1, "maximum": highest, "default": 100})


# The usual reasons for statuses of errors.
NO_TOPIC: Final = {404: "There is no such topic."}
NO_GROUP: Final = {404: "There is no such group."}
NO_TIMER: Final = {404: "No pending message has this id."}
NO_SCHEDULE: Final = {404: "There is no such schedule."}
NO_TOKEN: Final = {401: "The token is not in `http.readers_file`."}
LEASE_ENDED: Final = NO_TOKEN | {
    403: "The token may not read the topics of the lease.",
    410: "The lease has ended.",
}
HAS_MEMBERS: Final = {409: "The group has live members."}

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/metrics"): Operation("Metrics in the text format of Prometheus."),
    ("GET", "/healthz"): Operation("Whether the event loop runs. The answer is always `ok`."),
    ("GET", "/readyz"): Operation(
        "Whether the broker serves all requests.", statuses={503: "Not ready; the text is the reason."}
    ),
    ("GET", "/api/openapi.json"): Operation("This document.", answer=dict[str, Any]),
    ("GET", "/api/status"): Operation("The broker, its ports, log, last recovery and memory.", answer=answers.Status),
    ("GET", "/api/settings"): Operation(
        "The settings in force, each with its source.",
        answer=list[answers.SettingAnswer],
        description="After a reload, the settings that it changed have their new values.",
    ),
    ("POST", "/api/settings/reload"): Operation(
        "Read the settings again, as SIGHUP does.",
        answer=answers.ReloadedSettings,
        statuses={409: "The settings cannot be used; nothing has changed."},
    ),
    ("GET", "/api/segments"): Operation("The segments of the log.", answer=list[answers.SegmentAnswer]),
    ("GET", "/api/poison"): Operation(
        "Stored records that could not be processed and were set aside.", answer=answers.SetAsideRecords
    ),
    ("POST", "/api/poison/acknowledge"): Operation(
        "Acknowledge records that were set aside.",
        answer=answers.Acknowledged,
        body=status.NewAcknowledgement,
        is_body_optional=True,
        description="Without `kind` and `place`, all of them. They stay in the list, and are not reported again.",
    ),
    ("POST", "/api/drain"): Operation(
        "Let the clients leave, and stop the broker.",
        answer=answers.Draining,
        body=status.NewDrain,
        is_body_optional=True,
        status=202,
        statuses={503: "The broker cannot be drained."},
        description="The ports of clients accept no connections any more. The broker stops when the last connection is "
        "closed, or after `wait_ms`; until then it serves requests on open connections.",
    ),
    # -- Topics
    ("GET", "/api/topics"): Operation("All topics.", answer=list[answers.TopicSummary]),
    ("POST", "/api/topics"): Operation(
        "Create a topic.",
        answer=answers.TopicAnswer,
        body=topics.NewTopic,
        status=201,
        statuses={409: "The topic exists."},
        description="Values of configs are digits without a unit. `queues` defaults to `topics.queues`.",
    ),
    ("GET", "/api/topics/{name}"): Operation(
        "One topic with its queues and configs.", answer=answers.TopicAnswer, statuses=NO_TOPIC
    ),
    ("PATCH", "/api/topics/{name}"): Operation(
        "Change configs of a topic.",
        answer=answers.TopicAnswer,
        body=topics.NewConfigs,
        statuses=NO_TOPIC,
        description="A null value sets the default. Configs that are not named stay as they are.",
    ),
    ("DELETE", "/api/topics/{name}"): Operation(
        "Delete a topic with its messages and the groups' offsets in it.",
        answer=answers.DeletedTopic,
        statuses=NO_TOPIC,
    ),
    ("GET", "/api/topics/{name}/sums"): Operation(
        "Counts and checksums of ranges of a queue, to compare a copy with.",
        answer=answers.QueueSums,
        queries=(
            Query("queue", "The queue.", INTEGER | {"default": 0}),
            Query("start", "The first offset; by default the log start offset."),
            Query("end", "The offset after the last one; by default the last stable offset."),
            Query("step", "Offsets in each range.", {"type": "integer", "minimum": 1, "default": 1000}),
        ),
        statuses=NO_TOPIC | {409: "A batch cannot be read.", 410: "Retention removed `start`."},
    ),
    ("POST", "/api/topics/{name}/pause"): Operation(
        "Pause deliveries of delayed messages to a topic.", answer=answers.PausedTopic, statuses=NO_TOPIC
    ),
    ("POST", "/api/topics/{name}/resume"): Operation(
        "Resume deliveries of delayed messages to a topic.", answer=answers.PausedTopic, statuses=NO_TOPIC
    ),
    # -- Messages
    ("GET", "/api/topics/{name}/messages"): Operation(
        "Committed messages of a queue.",
        answer=answers.Messages,
        queries=(
            Query("queue", "The queue.", INTEGER | {"default": 0}),
            Query("offset", "The first offset; by default the log start offset. Not together with `time_ms`."),
            Query("time_ms", "Begin with the first message of this time or later."),
            _limit(messages.LIMIT_MAX),
        ),
        statuses=NO_TOPIC | {409: "A batch cannot be read.", 410: "The offset is outside the queue."},
        description="An answer ends after 1 MiB of JSON; go on at `next`. Of a value over 256 KiB only the beginning "
        "is shown, and `value_bytes` is its size.",
    ),
    ("POST", "/api/topics/{name}/messages"): Operation(
        "Send one message, or up to 1,000 as `messages`.",
        answer=answers.WrittenMessages,
        body=(messages.NewMessage, messages.NewMessages),
        status=201,
        statuses=NO_TOPIC,
        description="All messages are checked before the first one is written. Up to 100 may have a time, which is "
        "`at_ms` or `delay_ms`. A message without a queue goes to the queue of its key, or to any queue.",
    ),
    ("GET", "/api/messages/{id}"): Operation(
        "One message by RocketMQ's offsetMsgId.",
        answer=answers.PlacedMessage,
        statuses={404: "There is no such message."},
    ),
    # -- Groups
    ("GET", "/api/groups"): Operation("All consumer groups.", answer=list[answers.GroupSummary]),
    ("GET", "/api/groups/{name}"): Operation(
        "One group with its committed offsets and lag.",
        answer=answers.GroupAnswer,
        statuses=NO_GROUP,
        description="The lag of a queue without a committed offset counts from its log start offset.",
    ),
    ("DELETE", "/api/groups/{name}"): Operation(
        "Delete the committed offsets and the RocketMQ config of a group.",
        answer=answers.DeletedGroup,
        queries=(Query("execute", "Without it, the answer only says what would be deleted.", BOOLEAN),),
        statuses=NO_GROUP | HAS_MEMBERS,
    ),
    ("GET", "/api/groups/{name}/dead-letters"): Operation(
        "Dead letters of a group, with their reasons and origins.",
        answer=answers.DeadLetters,
        queries=(Query("offset", "The first offset in the dead-letter topic."), _limit(groups.LETTERS_MAX)),
        statuses=NO_GROUP,
    ),
    ("POST", "/api/groups/{name}/redrive"): Operation(
        "Send the dead letters of a group again.",
        answer=answers.Redriven,
        body=groups.NewRedrive,
        is_body_optional=True,
        statuses=NO_GROUP | {409: "`to` is needed, or the dead letters cannot be sent."},
        description="`to` is `retry` (the group's retry topic) or `topic` (the topics that the messages came from).",
    ),
    ("POST", "/api/groups/{name}/reset"): Operation(
        "Change the committed offsets of a group.",
        answer=answers.Reset,
        body=groups.NewReset,
        statuses=NO_GROUP | HAS_MEMBERS,
        description="Give one of `to` (`earliest` or `latest`), `time_ms` and `offset`. Without `topics`, all "
        "topics in which the group has offsets are reset, except retry and dead-letter topics. Without `execute`, the "
        "answer only says what would change.",
    ),
    # -- Transactions
    ("GET", "/api/transactions"): Operation(
        "Open transactions and half messages, then idle transactional ids; 1,000 at most.",
        answer=list[answers.TransactionRow],
    ),
    ("GET", "/api/transactions/{id}"): Operation(
        "One Kafka transaction, or one half message of a Kafka producer.",
        answer=answers.TransactionAnswer,
        statuses={404: "There is no such transactional id."},
    ),
    ("DELETE", "/api/transactions/{id}"): Operation(
        "Abort a Kafka transaction and fence its producer.",
        answer=answers.AbortedTransaction,
        statuses={404: "There is no such transactional id."},
    ),
    ("POST", "/api/transactions/{topic}/{id}"): Operation(
        "Commit or roll back a half message of a Kafka producer.",
        answer=answers.DecidedHalfMessage,
        body=answers.HalfMessageVerdict,
        statuses={404: "There is no such half message.", 409: "The half message was decided otherwise."},
    ),
    # -- Delayed messages
    ("POST", "/api/timers"): Operation(
        "Send a delayed message.",
        answer=answers.AddedTimer,
        body=timers.NewTimer,
        status=201,
        statuses=NO_TOPIC | {422: "The idempotency key was used with another body."},
        headers=(
            Query(
                timers.IDEMPOTENCY_KEY,
                "The same key and body within `http.request_key_ms` get the same answer and add no second message.",
                TEXT,
            ),
        ),
        description="Give `at_ms` or `delay_ms`. With `replace`, the message replaces pending messages of its topic "
        "with its key. Headers that ask for a delay are refused.",
    ),
    ("GET", "/api/timers"): Operation(
        "Pending messages in the order of their due times.",
        answer=answers.TimerList,
        queries=(
            TOPIC,
            KEY,
            FROM_MS,
            UNTIL_MS,
            _limit(pending.LIST_MAX),
            Query("after", "The `next` of the answer before.", TEXT),
            Query("content", "Show key, headers and the beginning of the value.", BOOLEAN),
        ),
        statuses=NO_TOPIC,
    ),
    ("DELETE", "/api/timers"): Operation(
        "Cancel all pending messages of a topic with a key.",
        answer=answers.TimerCommandAnswer,
        queries=(
            Query("topic", "The topic of the messages.", TEXT, is_required=True),
            Query("key", "The key of the messages.", TEXT, is_required=True),
        ),
        statuses=NO_TOPIC | {409: "Too many messages have this key."},
    ),
    ("GET", "/api/timers/count"): Operation(
        "The number of pending messages.",
        answer=answers.TimerCount,
        queries=(TOPIC, KEY, FROM_MS, UNTIL_MS),
        statuses=NO_TOPIC,
    ),
    ("GET", "/api/timers/histogram"): Operation(
        "The number of pending messages in each of several equal spans of time.",
        answer=answers.TimerHistogram,
        queries=(
            TOPIC,
            Query("from_ms", "Begin at this time; by default now."),
            Query("until_ms", "End at this time; by default one hour after `from_ms`."),
            Query(
                "bins",
                "The number of spans.",
                {"type": "integer", "minimum": 1, "maximum": pending.BINS_MAX, "default": 60},
            ),
        ),
        statuses=NO_TOPIC,
    ),
    ("POST", "/api/timers/reschedule"): Operation(
        "Change the due time of all pending messages of a topic with a key.",
        answer=answers.TimerCommandAnswer,
        body=timers.NewTimeByKey,
        statuses=NO_TOPIC | {409: "Too many messages have this key."},
    ),
    ("GET", "/api/timers/{id}"): Operation("One pending message.", answer=answers.TimerAnswer, statuses=NO_TIMER),
    ("DELETE", "/api/timers/{id}"): Operation(
        "Cancel a pending message.",
        answer=answers.TimerCommandAnswer,
        description="The status is 200 for each outcome, `not_found` included.",
    ),
    ("POST", "/api/timers/{id}/reschedule"): Operation(
        "Change the due time of a pending message.", answer=answers.TimerCommandAnswer, body=requests.NewTime
    ),
    ("POST", "/api/timers/{id}/now"): Operation("Deliver a pending message now.", answer=answers.TimerCommandAnswer),
    # -- Recurring messages
    ("POST", "/api/schedules"): Operation(
        "Register a schedule.",
        answer=answers.RegisteredSchedule,
        body=schedules.NewSchedule,
        status=201,
        statuses=NO_TOPIC | {200: "The schedule was there, and is unchanged or replaced."},
        description="Give `every_ms`, which may have `start_ms`, or `cron`, which may have `zone`. `missed` is `once`, "
        "`all` or `skip`.",
    ),
    ("GET", "/api/schedules"): Operation("All schedules.", answer=list[answers.ScheduleAnswer]),
    ("GET", "/api/schedules/{name}"): Operation(
        "One schedule with its message.", answer=answers.ScheduleAnswer, statuses=NO_SCHEDULE
    ),
    ("DELETE", "/api/schedules/{name}"): Operation(
        "Remove a schedule.", answer=answers.RemovedSchedule, statuses=NO_SCHEDULE
    ),
    # -- Leases
    ("POST", "/api/leases"): Operation(
        "Take a lease on the segments of some topics, for a reader of the files.",
        answer=answers.LeaseAnswer,
        body=leases.NewLease,
        status=201,
        statuses=NO_TOKEN | {403: "The token may not read one of the topics."} | NO_TOPIC,
    ),
    ("POST", "/api/leases/{lease}"): Operation("Renew a lease.", answer=answers.RenewedLease, statuses=LEASE_ENDED),
    ("DELETE", "/api/leases/{lease}"): Operation("End a lease.", answer=answers.ReleasedLease, statuses=LEASE_ENDED),
    ("POST", "/api/backups"): Operation(
        "Take a lease on the whole log, and list the files of a backup.",
        answer=answers.BackupAnswer,
        body=leases.NewBackup,
        is_body_optional=True,
        status=201,
        statuses=NO_TOKEN | {403: "The token may not read all topics."},
        description="`duolog backup` copies the first `size` bytes of each file, and then ends the lease.",
    ),
}

PLACES: Final = {
    "/api/topics/{name}": "The topic, in Kafka's or RocketMQ's spelling.",
    "/api/groups/{name}": "The group, in Kafka's or RocketMQ's spelling.",
    "/api/schedules/{name}": "The name of the schedule.",
    "/api/messages/{id}": "RocketMQ's offsetMsgId, or the id that a dead letter names.",
    "/api/timers/{id}": "The id of the pending message.",
    "/api/transactions/{id}": "The transactional id, or `topic/id` of a half message.",
    "/api/transactions/{topic}": "The topic of the half message.",
    "/api/transactions/{topic}/{id}": "The id that the producer gave the half message.",
    "/api/leases/{lease}": "The id of the lease.",
}
