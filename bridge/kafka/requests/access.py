"""The decision for each Kafka request: what a row of the table declares, asked before the handler runs.

    whole      needs without which the whole request is refused: the error of the resource's type, for all that it names
    items      an array whose items are decided on one by one; the handler gets the allowed ones, and the answer has the
               error for the others (`refused_items.py`)
    is_seen    the handler itself leaves out what the session may not see, by `KafkaRequest.may`

The functions of a declaration get the `KafkaContext` and the body, `Items.needs` the item between them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from duolog.bridge.security.authorizer import Authorizer
from duolog.bridge.security.needs import AnyOf, Need, first_refused
from duolog.bridge.security.rules import ResourceType
from duolog.bridge.security.session import DECISIONS_MAX, Session
from duolog.protocol.kafka.api_messages import ErrorCode

ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}


class Items(NamedTuple):
    """An array of a request, with what each item needs. `is_atomic`: if one is refused, nothing is done."""

    array: str
    needs: Callable[[Any, Any, Any], Iterable[AnyOf]]
    is_atomic: bool = False


class Remembered(NamedTuple):
    """What a session was allowed before, which holds until a user or a rule changes."""

    covers: Callable[[Session, Any], bool]  # Whether it is all that a request needs.
    topics: Callable[[Session], set[str]]


class Access(NamedTuple):
    """What requests of one API need."""

    whole: Callable[[Any, Any], Iterable[AnyOf]] | None = None
    items: tuple[Items, ...] = ()  # An array is named differently in different versions; a version has one of them.
    is_seen: bool = False
    is_change: bool = False  # The request is administrative: it needs one of `audit_log.CHANGES`.
    remembered: Remembered | None = None  # Set for frequent requests; None: the broker decides about each request.


class RefusedItems(NamedTuple):
    """The refused items of a request: its body with these items alone, by the error that they get."""

    array: str
    bodies: dict[ErrorCode, Any]
    not_attempted: Any | None = None  # The body with the allowed items, which are not done either.
    needs: tuple[Need, ...] = ()  # What was refused.


class AccessDecision(NamedTuple):
    """The decision about one request."""

    need: Need | None = None  # The need for which the whole request is refused; None if it is not.
    body: Any = None  # The body with the allowed items; None: the request's own.
    refused: RefusedItems | None = None


ALLOWED: Final = AccessDecision()


def remember(topics: set[str], partitions: Iterable[tuple[Any, ...]], is_plain: Callable[[str], bool]) -> None:
    """Remember the topics of a Produce or Fetch that was allowed as it is."""
    topics.update(partition[0] for partition in partitions if is_plain(partition[0]))
    if len(topics) > DECISIONS_MAX:
        topics.clear()


def decide(access: Access, authorizer: Authorizer, session: Session, context: Any, body: Any) -> AccessDecision:
    """Decide about a request."""
    if access.whole is not None:
        need = first_refused(authorizer, session, access.whole(context, body))
        if need is not None:
            return AccessDecision(need)
    for items in access.items:
        asked: Sequence[Any] | None = getattr(body, items.array, None)
        if asked:
            return _of_items(items, asked, authorizer, session, context, body)
    return ALLOWED


def needs_of(access: Access, context: Any, body: Any) -> Iterator[Need]:
    """Yield what a request needs, for the audit log; of alternatives, the first one."""
    if access.whole is not None:
        yield from (alternatives[0] for alternatives in access.whole(context, body))
    for items in access.items:
        for item in getattr(body, items.array, None) or ():
            yield from (alternatives[0] for alternatives in items.needs(context, item, body))


def _of_items(
    items: Items, asked: Sequence[Any], authorizer: Authorizer, session: Session, context: Any, body: Any
) -> AccessDecision:
    allowed: list[Any] = []
    refused: dict[ErrorCode, list[Any]] = {}
    lacking: list[Need] = []
    for item in asked:
        need = first_refused(authorizer, session, items.needs(context, item, body))
        if need is None:
            allowed.append(item)
        else:
            refused.setdefault(ERRORS[need.resource_type], []).append(item)
            lacking.append(need)
    if not refused:
        return ALLOWED
    bodies = {error: _with(body, items.array, found) for error, found in refused.items()}
    if items.is_atomic:
        rest = _with(body, items.array, allowed) if allowed else None
        return AccessDecision(
            None, _with(body, items.array, ()), RefusedItems(items.array, bodies, rest, tuple(lacking))
        )
    return AccessDecision(
        None, _with(body, items.array, allowed), RefusedItems(items.array, bodies, None, tuple(lacking))
    )


def _with(body: Any, array: str, items: Sequence[Any]) -> Any:
    """Return a copy of the body with these items."""
    if hasattr(body, "_replace"):
        return body._replace(**{array: list(items)})
    return replace(body, **{array: tuple(items)})
