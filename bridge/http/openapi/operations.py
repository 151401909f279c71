"""The operations of the HTTP API by method and path: their texts, parameters and error statuses.

`tests/unit/bridge/http/test_openapi.py` compares the rows with the router and the parameters with the handlers.
"""

from typing import Any, Final

from duolog.bridge.http import requests
from duolog.bridge.http.access import quotas, rules, users
from duolog.bridge.http.api import (
    backups,
    groups,
    leases,
    messages,
    pending,
    schedules,
    settings,
    status,
    timers,
    topics,
)
from duolog.bridge.http.openapi import answers, dead_letters
from duolog.bridge.http.openapi.observation import OBSERVATION
from duolog.bridge.http.openapi.operation import (
    BOOLEAN,
    INTEGER,
    NO_GROUP,
    NO_TOPIC,
    TEXT,
    ApiOperation,
    Query,
    limit_of,
)
from duolog.bridge.rocketmq.retry.redriven import RANGES_MAX
from duolog.bridge.security.tools.rule_texts import RuleText
from duolog.bridge.tracing.trace_context import TRACEPARENT

# -- Parameters of several operations

TOPIC: Final = Query("topic", "Only messages for this topic.", TEXT)
KEY: Final = Query("key", "Only messages with this key; needs `topic`.", TEXT)
FROM_MS: Final = Query("from_ms", "Only messages that are due at this time or later.")
UNTIL_MS: Final = Query("until_ms", "Only messages that are due before this time.")


# The usual reasons for statuses of errors.
NO_TIMER: Final = {404: "No pending message has this id."}
NO_SCHEDULE: Final = {404: "There is no such schedule."}
NO_TOKEN: Final = {401: "The token is not in `http.readers_file`."}
LEASE_ENDED: Final = NO_TOKEN | {
    403: "The token may not read the topics of the lease.",
    410: "The lease has ended.",
}
NO_USER: Final = {404: "There is no such user."}
SECURITY_OFF: Final = {409: "`security.enabled` is off."}
HAS_MEMBERS: Final = {409: "The group has live members."}

TRACE: Final = Query(TRACEPARENT, "The trace of the messages that have no such header of their own.", TEXT)

OPERATIONS: Final[dict[tuple[str, str], ApiOperation]] = OBSERVATION | {
    ("GET", "/metrics"): ApiOperation("Metrics in the text format of Prometheus."),
    ("GET", "/healthz"): ApiOperation("Whether the event loop runs. The answer is always `ok`."),
    ("GET", "/readyz"): ApiOperation(
        "Whether the broker serves all requests.", statuses={503: "Not ready; the text is the reason."}
    ),
    ("GET", "/openapi.json"): ApiOperation("This document.", answer=dict[str, Any]),
    ("GET", "/api/status"): ApiOperation("The broker, its ports, log, last recovery, memory.", answer=answers.Status),
    ("GET", "/api/settings"): ApiOperation(
        "The settings in force, each with its source.",
        answer=list[answers.SettingAnswer],
        queries=(Query("search", "Only settings whose name contains this text.", TEXT),),
        description="After a reload, the settings that it changed have their new values.",
    ),
    ("POST", "/api/settings/reload"): ApiOperation(
        "Read the settings again, as SIGHUP does.",
        answer=answers.ReloadedSettings,
        statuses={409: "The settings cannot be used; nothing has changed."},
    ),
    ("POST", "/api/log/levels"): ApiOperation(
        "Change the least severity of log lines.",
        answer=answers.LogLevels,
        body=settings.NewLogLevel,
        description="`level` is debug, info, warning or error. Without `component`, it is that of all components that "
        "have none of their own. Without `level`, the component loses its own. The change ends with a restart, or when "
        "the settings are read again.",
    ),
    ("GET", "/api/segments"): ApiOperation("The segments of the log.", answer=list[answers.SegmentAnswer]),
    ("GET", "/api/poison"): ApiOperation(
        "Stored records that could not be processed and were set aside.", answer=answers.SetAsideRecords
    ),
    ("POST", "/api/poison/acknowledge"): ApiOperation(
        "Acknowledge records that were set aside.",
        answer=answers.Acknowledged,
        body=status.NewAcknowledgement,
        is_body_optional=True,
        description="Without `kind` and `place`, all of them. They stay in the list, and are not reported again.",
    ),
    ("POST", "/api/drain"): ApiOperation(
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
    ("GET", "/api/topics"): ApiOperation(
        "Topics.",
        answer=list[answers.TopicSummary],
        queries=(
            Query("search", "Only topics whose name contains this text, in upper or lower case.", TEXT),
            Query("after", "Only topics whose name comes after this one.", TEXT),
            Query("limit", "The number of topics.", {"type": "integer", "minimum": 1, "maximum": topics.LIST_MAX}),
            Query("system", "Whether the broker's own topics are listed, too.", {"type": "boolean", "default": True}),
        ),
        description="Without `after` and `limit`, all topics in the order of their creation; with one of them, a page "
        "in the order of names. The next page begins `after` the last name.",
    ),
    ("POST", "/api/topics"): ApiOperation(
        "Create a topic.",
        answer=answers.TopicAnswer,
        body=topics.NewTopic,
        status=201,
        statuses={409: "The topic exists."},
        description="Values of configs are digits without a unit. `queues` defaults to `topics.queues`.",
    ),
    ("GET", "/api/topics/{name}"): ApiOperation(
        "One topic with its queues and configs.", answer=answers.TopicAnswer, statuses=NO_TOPIC
    ),
    ("PATCH", "/api/topics/{name}"): ApiOperation(
        "Change configs of a topic.",
        answer=answers.TopicAnswer,
        body=topics.NewConfigs,
        statuses=NO_TOPIC,
        description="A null value sets the default. Configs that are not named stay as they are.",
    ),
    ("DELETE", "/api/topics/{name}"): ApiOperation(
        "Delete a topic with its messages and the groups' offsets in it.",
        answer=answers.DeletedTopic,
        statuses=NO_TOPIC,
    ),
    ("GET", "/api/topics/{name}/sums"): ApiOperation(
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
    ("POST", "/api/topics/{name}/pause"): ApiOperation(
        "Pause deliveries of delayed messages to a topic.", answer=answers.PausedTopic, statuses=NO_TOPIC
    ),
    ("POST", "/api/topics/{name}/resume"): ApiOperation(
        "Resume deliveries of delayed messages to a topic.", answer=answers.PausedTopic, statuses=NO_TOPIC
    ),
    # -- Messages
    ("GET", "/api/topics/{name}/messages"): ApiOperation(
        "Committed messages of a queue.",
        answer=answers.Messages,
        queries=(
            Query("queue", "The queue.", INTEGER | {"default": 0}),
            Query("offset", "The first offset; by default the log start offset. Not together with `time_ms`."),
            Query("time_ms", "Begin with the first message of this time or later."),
            Query("tag", "Only messages with one of these tags: `paid || sent`.", TEXT),
            Query("key", "Only messages with this key.", TEXT),
            Query("header", "Only messages with this header: `NAME`, or `NAME=VALUE`.", TEXT),
            Query("sql", "Only messages for which this SQL92 condition on headers is true; `KEYS` is the key.", TEXT),
            limit_of(messages.LIMIT_MAX),
        ),
        statuses=NO_TOPIC | {409: "A batch cannot be read.", 410: "The offset is outside the queue."},
        description="An answer ends after 1 MiB of JSON or 16 MiB that were read; go on at `next`. "
        "Of a value over 256 KiB only the beginning is shown, and `value_bytes` is its size.",
    ),
    ("POST", "/api/topics/{name}/messages"): ApiOperation(
        "Send one message, or up to 1,000 as `messages`.",
        answer=answers.WrittenMessages,
        body=(messages.NewMessage, messages.NewMessages),
        status=201,
        statuses=NO_TOPIC,
        headers=(TRACE,),
        description="All messages are checked before the first one is written. Up to 100 may have a time, which is "
        "`at_ms` or `delay_ms`. A message without a queue goes to the queue of its key, or to any queue.",
    ),
    ("GET", "/api/messages/{id}"): ApiOperation(
        "One message by RocketMQ's offsetMsgId.",
        answer=answers.PlacedMessage,
        statuses={404: "There is no such message."},
    ),
    # -- Groups
    ("GET", "/api/groups"): ApiOperation(
        "Consumer groups.",
        answer=list[answers.GroupSummary],
        queries=(Query("search", "Only groups whose name contains this text, in upper or lower case.", TEXT),),
    ),
    ("GET", "/api/groups/{name}"): ApiOperation(
        "One group with its committed offsets and lag.",
        answer=answers.GroupAnswer,
        statuses=NO_GROUP,
        description="The lag of a queue without a committed offset counts from its log start offset.",
    ),
    ("DELETE", "/api/groups/{name}"): ApiOperation(
        "Delete the committed offsets and the RocketMQ config of a group.",
        answer=answers.DeletedGroup,
        queries=(Query("execute", "Without it, the answer only says what would be deleted.", BOOLEAN),),
        statuses=NO_GROUP | HAS_MEMBERS,
    ),
    ("GET", "/api/groups/{name}/dead-letters"): ApiOperation(
        "Dead letters of a group, with their reasons and origins.",
        answer=dead_letters.DeadLetters,
        queries=(
            Query("offset", "The first offset in the dead-letter topic."),
            limit_of(groups.LETTERS_MAX),
            Query("reason", "Only dead letters with this reason.", TEXT),
            Query("topic", "Only dead letters that came from this topic, in RocketMQ's spelling.", TEXT),
            Query("key", "Only dead letters with this key.", TEXT),
            Query("tag", "Only dead letters with this tag.", TEXT),
        ),
        statuses=NO_GROUP,
    ),
    ("POST", "/api/groups/{name}/redrive"): ApiOperation(
        "Send the dead letters of a group again.",
        answer=dead_letters.Redriven,
        body=groups.NewRedrive,
        is_body_optional=True,
        statuses=NO_GROUP | {409: "`to` is needed, or the dead letters cannot be sent."},
        description="`to` is `retry` (the group's retry topic) or `topic` (the topics that the messages came from). "
        "With `offsets`, only the dead letters at these offsets are sent, also if they were redriven before. With "
        "`reason`, `topic`, `key` or `tag`, which filter as in the list of dead letters, the matching ones are sent "
        "that were not redriven. A later redrive of all leaves them out; if they are in more than "
        f"{RANGES_MAX} places with others between, it sends the letters after these places once more.",
    ),
    ("POST", "/api/groups/{name}/reset"): ApiOperation(
        "Change the committed offsets of a group.",
        answer=answers.Reset,
        body=groups.NewReset,
        statuses=NO_GROUP | HAS_MEMBERS,
        description="Give one of `to` (`earliest` or `latest`), `time_ms` and `offset`. Without `topics`, all "
        "topics in which the group has offsets are reset, except retry and dead-letter topics. Without `execute`, the "
        "answer only says what would change.",
    ),
    # -- Transactions
    ("GET", "/api/transactions"): ApiOperation(
        "Open transactions and half messages, then idle transactional ids; 1,000 at most.",
        answer=list[answers.TransactionRow],
    ),
    ("GET", "/api/transactions/{id}"): ApiOperation(
        "One Kafka transaction, or one half message of a Kafka producer.",
        answer=answers.TransactionAnswer,
        statuses={404: "There is no such transactional id."},
    ),
    ("DELETE", "/api/transactions/{id}"): ApiOperation(
        "Abort a Kafka transaction and fence its producer.",
        answer=answers.AbortedTransaction,
        statuses={404: "There is no such transactional id."},
    ),
    ("POST", "/api/transactions/{topic}/{id}"): ApiOperation(
        "Commit or roll back a half message of a Kafka producer.",
        answer=answers.DecidedHalfMessage,
        body=answers.HalfMessageVerdict,
        statuses={
            404: "There is no such half message.",
            409: "The half message was decided otherwise.",
            429: "It is delayed, and no user or client id more can have pending messages that count in a quota.",
        },
    ),
    ("POST", "/api/half-messages/{offset}"): ApiOperation(
        "Commit or roll back a half message of a RocketMQ producer, instead of the producer.",
        answer=answers.DecidedByOffset,
        body=answers.HalfMessageVerdict,
        statuses={404: "There is no such half message.", 409: "It was decided otherwise, or its topic was deleted."},
    ),
    # -- Delayed messages
    ("POST", "/api/timers"): ApiOperation(
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
            TRACE,
        ),
        description="Give `at_ms` or `delay_ms`. With `replace`, the message replaces pending messages of its topic "
        "with its key. Headers that ask for a delay are refused.",
    ),
    ("GET", "/api/timers"): ApiOperation(
        "Pending messages in the order of their due times.",
        answer=answers.TimerList,
        queries=(
            TOPIC,
            KEY,
            FROM_MS,
            UNTIL_MS,
            limit_of(pending.LIST_MAX),
            Query("after", "The `next` of the answer before.", TEXT),
            Query("content", "Show key, headers and the beginning of the value.", BOOLEAN),
        ),
        statuses=NO_TOPIC,
    ),
    ("DELETE", "/api/timers"): ApiOperation(
        "Cancel all pending messages of a topic with a key.",
        answer=answers.TimerCommandAnswer,
        queries=(
            Query("topic", "The topic of the messages.", TEXT, is_required=True),
            Query("key", "The key of the messages.", TEXT, is_required=True),
        ),
        statuses=NO_TOPIC | {409: "Too many messages have this key."},
    ),
    ("GET", "/api/timers/count"): ApiOperation(
        "The number of pending messages.",
        answer=answers.TimerCount,
        queries=(TOPIC, KEY, FROM_MS, UNTIL_MS),
        statuses=NO_TOPIC,
    ),
    ("GET", "/api/timers/histogram"): ApiOperation(
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
    ("POST", "/api/timers/reschedule"): ApiOperation(
        "Change the due time of all pending messages of a topic with a key.",
        answer=answers.TimerCommandAnswer,
        body=timers.NewTimeByKey,
        statuses=NO_TOPIC | {409: "Too many messages have this key."},
    ),
    ("GET", "/api/timers/{id}"): ApiOperation("One pending message.", answer=answers.TimerAnswer, statuses=NO_TIMER),
    ("DELETE", "/api/timers/{id}"): ApiOperation(
        "Cancel a pending message.",
        answer=answers.TimerCommandAnswer,
        description="The status is 200 for each outcome, `not_found` included.",
    ),
    ("POST", "/api/timers/{id}/reschedule"): ApiOperation(
        "Change the due time of a pending message.", answer=answers.TimerCommandAnswer, body=requests.NewTime
    ),
    ("POST", "/api/timers/{id}/now"): ApiOperation("Deliver a pending message now.", answer=answers.TimerCommandAnswer),
    # -- Recurring messages
    ("POST", "/api/schedules"): ApiOperation(
        "Register a schedule.",
        answer=answers.RegisteredSchedule,
        body=schedules.NewSchedule,
        status=201,
        statuses=NO_TOPIC | {200: "The schedule was there, and is unchanged or replaced."},
        description="Give `every_ms`, which may have `start_ms`, or `cron`, which may have `zone`. `missed` is `once`, "
        "`all` or `skip`.",
    ),
    ("GET", "/api/schedules"): ApiOperation("All schedules.", answer=list[answers.ScheduleAnswer]),
    ("GET", "/api/schedules/{name}"): ApiOperation(
        "One schedule with its message.", answer=answers.ScheduleAnswer, statuses=NO_SCHEDULE
    ),
    ("DELETE", "/api/schedules/{name}"): ApiOperation(
        "Remove a schedule.", answer=answers.RemovedSchedule, statuses=NO_SCHEDULE
    ),
    # -- Users and access rules
    ("GET", "/api/users"): ApiOperation("All users.", answer=list[answers.UserAnswer], statuses=SECURITY_OFF),
    ("POST", "/api/users"): ApiOperation(
        "Add a user.",
        answer=answers.UserAnswer,
        body=users.NewUser,
        status=201,
        statuses={409: "There is such a user already, or `security.enabled` is off."},
    ),
    ("PATCH", "/api/users/{name}"): ApiOperation(
        "Change the password, the groups or the rank of a user.",
        answer=answers.UserAnswer,
        body=users.UserChange,
        statuses=NO_USER | SECURITY_OFF,
        description="A new password ends the sessions of the user.",
    ),
    ("DELETE", "/api/users/{name}"): ApiOperation(
        "Remove a user.", answer=answers.RemovedUser, statuses=NO_USER | SECURITY_OFF
    ),
    ("GET", "/api/acls"): ApiOperation("All access rules.", answer=list[RuleText], statuses=SECURITY_OFF),
    ("POST", "/api/acls"): ApiOperation(
        "Add access rules.", answer=answers.AddedRules, body=rules.RuleList, statuses=SECURITY_OFF
    ),
    ("POST", "/api/acls/remove"): ApiOperation(
        "Remove access rules.", answer=answers.RemovedRules, body=rules.RuleList, statuses=SECURITY_OFF
    ),
    # -- Quotas
    ("GET", "/api/quotas"): ApiOperation("All quotas.", answer=list[answers.QuotaAnswer]),
    ("POST", "/api/quotas"): ApiOperation(
        "Set and remove quotas of a user, of a client id, or of both.",
        answer=answers.QuotaAnswer,
        body=quotas.QuotaChange,
        statuses={404: "A limit to remove is not set.", 409: "`security.quotas_max` is reached."},
        description="A limit that is null is removed; others that are not named stay. An empty name is the default.",
    ),
    # -- Leases
    ("POST", "/api/leases"): ApiOperation(
        "Take a lease on the segments of some topics, for a reader of the files.",
        answer=answers.LeaseAnswer,
        body=leases.NewLease,
        status=201,
        statuses=NO_TOKEN | {403: "The token may not read one of the topics."} | NO_TOPIC,
    ),
    ("POST", "/api/leases/{lease}"): ApiOperation("Renew a lease.", answer=answers.RenewedLease, statuses=LEASE_ENDED),
    ("DELETE", "/api/leases/{lease}"): ApiOperation("End a lease.", answer=answers.ReleasedLease, statuses=LEASE_ENDED),
    ("POST", "/api/backups"): ApiOperation(
        "Take a lease on the whole log, and list the files of a backup.",
        answer=answers.BackupAnswer,
        body=backups.NewBackup,
        is_body_optional=True,
        status=201,
        statuses=NO_TOKEN | {403: "The token may not read all topics."},
        description="`duolog backup` copies the first `size` bytes of each file, and then ends the lease.",
    ),
}

PLACES: Final = {
    "/api/topics/{name}": "The topic, in Kafka's or RocketMQ's spelling.",
    "/api/groups/{name}": "The group, in Kafka's or RocketMQ's spelling.",
    "/api/users/{name}": "The name of the user.",
    "/api/schedules/{name}": "The name of the schedule.",
    "/api/messages/{id}": "RocketMQ's offsetMsgId, or the id that a dead letter names.",
    "/api/timers/{id}": "The id of the pending message.",
    "/api/transactions/{id}": "The transactional id, or `topic/id` of a half message.",
    "/api/transactions/{topic}": "The topic of the half message.",
    "/api/transactions/{topic}/{id}": "The id that the producer gave the half message.",
    "/api/half-messages/{offset}": "The `half_offset` of the row in the list of transactions.",
    "/api/leases/{lease}": "The id of the lease.",
}
