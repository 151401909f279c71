"""JSON views of consumer groups.

Offsets count records; `lag` is the number of records that a group has not read (`bridge/state/lag.py`); times are wall
milliseconds. At each None that a generator yields, the event loop may run.
"""

from collections.abc import Collection, Generator, Iterator, Sequence

from duolog.bridge.http.answers import Json, object_with
from duolog.bridge.http.context import HttpContext
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.names import dead_letter_topic


def known_groups(context: HttpContext) -> Collection[str]:
    """Return the groups that have committed offsets or members in either client protocol, by their Kafka names.

    Those with committed offsets come first, in the order of their first commits.
    """
    kafka = (group.group_id for group in context.groups.kafka_groups.groups())
    rocketmq = map(group_of_rocketmq, context.groups.rocketmq_members.consumers)
    return dict.fromkeys((*context.groups.group_offsets.groups(), *kafka, *rocketmq))


def has_group(context: HttpContext, name: str) -> bool:
    """Return whether a group, named as in either client protocol, has committed offsets, members or dead letters."""
    group = group_of_rocketmq(name)
    dead_letters = context.topics.by_rocketmq_name(dead_letter_topic(context.groups.rocketmq_groups.name_of(group)))
    return dead_letters is not None or group in known_groups(context)


def groups(context: HttpContext, names: Sequence[str]) -> Iterator[Json | None]:
    """Yield the rows of these groups."""
    for name in names:
        yield (yield from _group_summary(context, name))


def group(context: HttpContext, name: str) -> Iterator[bytes | None]:
    """Yield the parts of the description of a group that exists."""
    summary = yield from _group_summary(context, name)
    yield from object_with(summary | _failed(context, name), "positions", _positions(context, name))


def _group_summary(context: HttpContext, name: str) -> Generator[None, None, Json]:
    found = yield from context.groups.lags.of_group(name)
    active = context.groups.client_protocols.active(name)
    return {
        "name": name,
        "active": active.value if active else None,
        "members": member_count(context, name),
        "topics": sorted(found.topics),
        "lag": found.lag,
        "lag_without_position": found.lag_without_position,
        "queues_without_position": found.queues_without_position,
    }


def member_count(context: HttpContext, name: str) -> int:
    """Return the number of members of a group in the client protocol in which it is active."""
    kafka = context.groups.kafka_groups.group(name)
    return (
        len(kafka.members)
        if kafka
        else len(context.groups.rocketmq_members.client_ids(context.groups.rocketmq_groups.name_of(name)))
    )


def groups_of_topic(context: HttpContext, topic: Topic) -> Iterator[Json | None]:
    """Yield the rows of the groups of either client protocol that read a topic, with their lag in it."""
    for name in sorted(known_groups(context)):
        found = yield from context.groups.lags.in_topic(name, topic)
        yield None
        if found is not None:
            active = context.groups.client_protocols.active(name)
            yield {
                "name": name,
                "active": active.value if active else None,
                "members": member_count(context, name),
                "lag": found.lag,
                "lag_without_position": found.lag_without_position,
                "queues_without_position": found.queues_without_position,
            }


def _failed(context: HttpContext, name: str) -> Json:
    retries, dead_letters = context.groups.unread_failures(name)
    return {"retries_waiting": retries, "dead_letters": dead_letters}


def _positions(context: HttpContext, name: str) -> Iterator[Json | None]:
    for each in context.groups.lags.of_queues(name):
        if each is None:
            yield None
            continue
        position, queue = each.position, each.queue
        yield {
            "topic": each.topic.name,
            "queue": queue.queue_id,
            "position": None if position is None else position.offset,
            "start": queue.start_offset,
            "end": queue.visible_end,
            "lag": each.lag,
            "committed_ms": None if position is None else position.commit_ms,
        }
