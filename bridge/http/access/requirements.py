"""The needs of each route of the HTTP API, by method and path. A route without a row prevents the start of the broker.

A function gets the context, the request, and its body if `reads_body` is set. The operations are those that Kafka's
requests for the same purpose need.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from duolog.bridge.http.context import HttpContext
from duolog.bridge.security.needs import AnyOf, cluster, group, topic, transactional_id
from duolog.bridge.security.quotas.entity import FETCHED, PRODUCED
from duolog.bridge.security.resources import DLQ
from duolog.bridge.security.rules import Operation, ResourceType
from duolog.protocol import names

READ, WRITE, CREATE, DELETE, ALTER = (
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER,
)  # fmt: skip
DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS

NeedsOf = Callable[[Any, web.Request, bytes], Iterable[AnyOf]]  # It gets the `HttpContext`, or that of a standby.


class RouteAccess(NamedTuple):
    """The access rules of one route."""

    needs: NeedsOf
    reads_body: bool = False  # The needs depend on the body.
    is_open: bool = False  # The route needs no login.
    has_readers: bool = False  # A token of `http.readers_file` is enough; the handler checks it.
    quota: str = ""  # The key of the quota in which its messages count: PRODUCED or FETCHED.
    # The route sends or reads messages, so it is not administrative although it is neither GET nor HEAD.
    is_data: bool = False


class _Named(msgspec.Struct):
    """The fields of a body with the names of the resources of a request."""

    name: str = ""
    topic: str = ""
    topics: list[str] | None = None


def topic_needs(context: HttpContext, name: str, operation: Operation) -> Iterable[AnyOf]:
    """Return the needs of an operation on a topic, whose name is in either spelling."""
    known = context.topics.get(name)
    return context.security.resources.topic(names.kafka_name(name) if known is None else known.kafka_name, operation)


def _group_names(request: web.Request) -> set[str]:
    """Return the groups that the name of a path may mean: a Kafka group may have any name."""
    name = request.match_info["name"]
    return {name, names.group_of_rocketmq(name)}


def _of_cluster(operation: Operation) -> RouteAccess:
    return RouteAccess(lambda context, request, body: (cluster(operation),))


def _of_topic(operation: Operation, field: str = "name") -> RouteAccess:
    return RouteAccess(lambda context, request, body: topic_needs(context, request.match_info[field], operation))


def _of_group(operation: Operation) -> RouteAccess:
    return RouteAccess(lambda context, request, body: [group(name, operation) for name in _group_names(request)])


def _of_body(operation: Operation) -> RouteAccess:
    """Declare an operation on the topic that the body names; a malformed body is the handler's to refuse."""
    return RouteAccess(
        lambda context, request, body: topic_needs(context, _named(body).topic, operation), reads_body=True
    )


def _of_query(operation: Operation) -> RouteAccess:
    """Declare an operation on the topic of the query, or on the cluster if the query names none."""

    def needs(context: HttpContext, request: web.Request, body: bytes) -> Iterable[AnyOf]:
        name = request.query.get("topic")
        return topic_needs(context, name, operation) if name else (cluster(operation),)

    return RouteAccess(needs)


def _named(body: bytes) -> _Named:
    try:
        return msgspec.json.decode(body, type=_Named) if body else _Named()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Named()


def _nothing(context: HttpContext, request: web.Request, body: bytes) -> Iterable[AnyOf]:
    return ()


def _new_topic(context: HttpContext, request: web.Request, body: bytes) -> Iterator[AnyOf]:
    yield (*topic(names.kafka_name(_named(body).name), CREATE), *cluster(CREATE))


def _dead_letters(context: HttpContext, request: web.Request, body: bytes) -> Iterable[AnyOf]:
    return chain.from_iterable(context.security.resources.topic(DLQ + name, READ) for name in _group_names(request))


def _redrive(context: HttpContext, request: web.Request, body: bytes) -> Iterator[AnyOf]:
    """Redriven messages are written to the group's retry topic or to the topics that they came from."""
    for need in _dead_letters(context, request, body):
        yield need
        if need[0].resource_type is ResourceType.TOPIC and need[0].name is not None:
            yield topic(need[0].name, WRITE)


def _reset(context: HttpContext, request: web.Request, body: bytes) -> Iterator[AnyOf]:
    named = _named(body).topics
    for name in _group_names(request):
        yield group(name, READ)
        for each in context.security.origins(name) if named is None else named:
            yield from topic_needs(context, each, READ)


def _transaction(context: HttpContext, request: web.Request, body: bytes) -> Iterator[AnyOf]:
    name = request.match_info["id"]
    named_topic, slash, _ = name.rpartition("/")
    if slash and context.topics.get(named_topic) is not None:
        yield from topic_needs(context, named_topic, DESCRIBE)
    else:
        yield transactional_id(name, DESCRIBE)


def _of_schedule(operation: Operation) -> RouteAccess:
    def needs(context: HttpContext, request: web.Request, body: bytes) -> Iterable[AnyOf]:
        return _schedule_needs(context, request.match_info["name"], operation)

    return RouteAccess(needs)


def _schedule_needs(context: HttpContext, name: str, operation: Operation) -> Iterable[AnyOf]:
    """Return what an operation on the topic of a schedule needs; nothing, if there is no such schedule."""
    found = context.delayed.schedules.state.get(name)
    target = None if found is None else context.topics.by_number(found.topic)
    return () if target is None else context.security.resources.topic(target.kafka_name, operation)


def _new_schedule(context: HttpContext, request: web.Request, body: bytes) -> Iterator[AnyOf]:
    """A schedule takes the place of one with its name, which may be for another topic."""
    named = _named(body)
    yield from topic_needs(context, named.topic, WRITE)
    yield from _schedule_needs(context, named.name, WRITE)


OPEN: Final = RouteAccess(_nothing, is_open=True)
WHEN_FOUND: Final = RouteAccess(_nothing)  # The handler checks the topic of what it finds: `check_found`.
SEEN: Final = RouteAccess(_nothing)  # The handler lists what the session may see: `is_seen`.
LOGGED_IN: Final = RouteAccess(_nothing, is_data=True)
FILES: Final = RouteAccess(lambda context, request, body: (cluster(READ),), has_readers=True, is_data=True)

ROUTES: Final[dict[tuple[str, str], RouteAccess]] = {
    ("GET", "/metrics"): _of_cluster(DESCRIBE),
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/openapi.json"): LOGGED_IN,
    ("GET", "/api/history"): _of_cluster(DESCRIBE),
    ("GET", "/api/warnings"): _of_cluster(DESCRIBE),
    ("GET", "/api/clients"): _of_cluster(DESCRIBE),
    ("GET", "/api/log"): _of_cluster(DESCRIBE_CONFIGS),
    ("POST", "/api/log/levels"): _of_cluster(ALTER_CONFIGS),
    ("GET", "/api/cron"): LOGGED_IN,
    ("GET", "/api/status"): _of_cluster(DESCRIBE),
    ("GET", "/api/settings"): _of_cluster(DESCRIBE_CONFIGS),
    ("POST", "/api/settings/reload"): _of_cluster(ALTER_CONFIGS),
    ("GET", "/api/segments"): _of_cluster(DESCRIBE),
    ("GET", "/api/poison"): _of_cluster(DESCRIBE),
    ("POST", "/api/poison/acknowledge"): _of_cluster(ALTER),
    ("POST", "/api/drain"): _of_cluster(ALTER),
    ("GET", "/api/topics"): SEEN,
    ("POST", "/api/topics"): RouteAccess(_new_topic, reads_body=True),
    ("GET", "/api/topics/{name}"): _of_topic(DESCRIBE),
    ("PATCH", "/api/topics/{name}"): _of_topic(ALTER_CONFIGS),
    ("DELETE", "/api/topics/{name}"): _of_topic(DELETE),
    ("GET", "/api/topics/{name}/groups"): _of_topic(DESCRIBE),
    ("GET", "/api/topics/{name}/sums"): _of_topic(READ),
    ("POST", "/api/topics/{name}/pause"): _of_topic(ALTER),
    ("POST", "/api/topics/{name}/resume"): _of_topic(ALTER),
    ("GET", "/api/topics/{name}/messages"): _of_topic(READ)._replace(quota=FETCHED),
    ("POST", "/api/topics/{name}/messages"): _of_topic(WRITE)._replace(is_data=True, quota=PRODUCED),
    ("GET", "/api/messages/{id}"): WHEN_FOUND._replace(quota=FETCHED),
    ("GET", "/api/groups"): SEEN,
    ("GET", "/api/groups/{name}"): _of_group(DESCRIBE),
    ("GET", "/api/groups/{name}/members"): _of_group(DESCRIBE),
    ("DELETE", "/api/groups/{name}"): _of_group(DELETE),
    ("GET", "/api/groups/{name}/dead-letters"): RouteAccess(_dead_letters, quota=FETCHED),
    ("POST", "/api/groups/{name}/redrive"): RouteAccess(_redrive),
    ("POST", "/api/groups/{name}/reset"): RouteAccess(_reset, reads_body=True),
    ("GET", "/api/transactions"): _of_cluster(DESCRIBE),
    ("GET", "/api/transactions/{id}"): RouteAccess(_transaction),
    ("DELETE", "/api/transactions/{id}"): _of_cluster(ALTER),
    ("POST", "/api/transactions/{topic}/{id}"): _of_topic(WRITE, "topic"),
    ("POST", "/api/half-messages/{offset}"): _of_cluster(ALTER),
    ("POST", "/api/timers"): _of_body(WRITE)._replace(is_data=True, quota=PRODUCED),
    ("GET", "/api/timers"): _of_query(READ)._replace(quota=FETCHED),
    ("DELETE", "/api/timers"): _of_query(WRITE),
    ("GET", "/api/timers/count"): _of_query(DESCRIBE),
    ("GET", "/api/timers/histogram"): _of_query(DESCRIBE),
    ("POST", "/api/timers/reschedule"): _of_body(WRITE),
    ("GET", "/api/timers/{id}"): WHEN_FOUND._replace(quota=FETCHED),
    ("DELETE", "/api/timers/{id}"): WHEN_FOUND,
    ("POST", "/api/timers/{id}/reschedule"): WHEN_FOUND,
    ("POST", "/api/timers/{id}/now"): WHEN_FOUND,
    ("POST", "/api/schedules"): RouteAccess(_new_schedule, reads_body=True),
    ("GET", "/api/schedules"): _of_cluster(READ),
    ("GET", "/api/schedules/{name}"): _of_schedule(READ),
    ("DELETE", "/api/schedules/{name}"): _of_schedule(WRITE),
    ("POST", "/api/leases"): FILES,
    ("POST", "/api/leases/{lease}"): FILES,
    ("DELETE", "/api/leases/{lease}"): FILES,
    ("POST", "/api/backups"): FILES,
    ("GET", "/api/users"): _of_cluster(DESCRIBE),
    ("POST", "/api/users"): _of_cluster(ALTER),
    ("PATCH", "/api/users/{name}"): _of_cluster(ALTER),
    ("DELETE", "/api/users/{name}"): _of_cluster(ALTER),
    ("GET", "/api/acls"): _of_cluster(DESCRIBE),
    ("POST", "/api/acls"): _of_cluster(ALTER),
    ("POST", "/api/acls/remove"): _of_cluster(ALTER),
    ("GET", "/api/quotas"): _of_cluster(DESCRIBE_CONFIGS),
    ("POST", "/api/quotas"): _of_cluster(ALTER_CONFIGS),
}


def check_complete(table: Mapping[tuple[str, str], RouteAccess], routes: Iterable[tuple[str, str]]) -> None:
    """Raise AssertionError for a route without a row, also under `python -O`, which has no `assert`."""
    missing = [route for route in routes if route not in table]
    if missing:
        raise AssertionError(f"routes that declare nothing about access: {missing}")


def access_of(table: Mapping[tuple[str, str], RouteAccess], request: web.Request) -> RouteAccess | None:
    """Return the row of a request; None: it has no route, which the router answers."""
    resource: Any = request.match_info.route.resource
    if resource is None:
        return None
    return table[("GET" if request.method == "HEAD" else request.method), resource.canonical]
