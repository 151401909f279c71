"""What the JSON API says about the broker, its topics and its groups: plain dicts, computed when asked for.

Offsets count records; `lag` is what a group has not read yet (`bridge/state/lag.py`); times are wall milliseconds. What
may be long is a generator of rows or of parts of the answer, in which None is a place where the loop may turn.
"""

import os
import resource
from collections.abc import Generator, Iterator
from functools import cache
from importlib.metadata import version as installed_version
from typing import Any

from duolog.bridge.http.answers import object_with
from duolog.bridge.http.context import HttpContext
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.state.topics import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.names import dead_letter_topic

Json = dict[str, Any]

_PAGE_BYTES = resource.getpagesize()


# -- The broker


def status(context: HttpContext) -> Json:
    store, server = context.store, context.monitoring.server
    return {
        "version": _version(),
        "pid": os.getpid(),
        "cluster_id": context.monitoring.cluster_id(),
        "ready": context.monitoring.not_ready_reason() or "yes",
        "uptime_ms": context.clock.mono_ms() - context.monitoring.started_mono_ms,
        "listeners": {
            name: endpoint(host, port) for name, (host, port) in context.monitoring.addresses.listening.items()
        },
        "log": {
            "next_position": store.next_position,
            "written": store.written,
            "durable": store.durable,
            "flush": context.options.store.flush,
        },
        "recovery": store.recovery._asdict(),
        "topics": len(context.topics),
        "groups": len(known_groups(context)),
        "connections": len(server.connections),
        "memory_bytes": resident_bytes(),
    }


@cache
def _version() -> str:
    return installed_version("duolog")


def poison(context: HttpContext) -> dict[str, Any]:
    """Stored records that could not be processed, also by earlier runs: how many by kind, and the newest of them."""
    return {
        "counts": context.monitoring.poison.counts,
        "records": [each._asdict() for each in context.monitoring.poison.all()],
    }


def segments(context: HttpContext) -> Iterator[Json]:
    """List the log's files; the last one is written to. A gap stands for files that retention removed."""
    for segment in list(context.store.segments()):
        yield {"start": segment.start, "end": segment.end, "is_gap": segment.is_gap, "path": segment.path}


def resident_bytes() -> dict[str, int]:
    """Resident memory of this process: all of it, and what is not backed by files; nothing where there is no /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            _, resident, shared = map(int, statm.read().split()[:3])
    except FileNotFoundError:
        resident = shared = 0
    return {"resident": resident * _PAGE_BYTES, "anonymous": (resident - shared) * _PAGE_BYTES}


# -- Topics


def topic_summary(topic: Topic) -> Json:
    return {
        "name": topic.name,
        "kafka_name": topic.kafka_name,
        "rocketmq_name": topic.rocketmq_name,
        "queues": topic.queue_count,
        "records": sum(queue.visible_end - queue.start_offset for queue in topic.queues),
        "size_bytes": sum(queue.size_bytes for queue in topic.queues),
        "is_system": not topic.is_listed,
    }


def topics(context: HttpContext) -> Iterator[Json]:
    return map(topic_summary, list(context.topics.all()))


def topic(context: HttpContext, topic: Topic) -> Iterator[bytes | None]:
    described = topic_summary(topic) | {
        "id": str(topic.id),
        "number": topic.number,
        "created_ms": topic.created_ms,
        "configs": dict(topic.configs),
        "is_paused": context.delayed.delays.is_paused(topic),
    }
    del described["queues"]  # Their number; the array says it, too.
    return object_with(described, "queues", (_queue(topic, queue_id) for queue_id in range(topic.queue_count)))


def _queue(topic: Topic, queue_id: int) -> Json:
    queue = topic.queues[queue_id]
    return {
        "queue": queue_id,
        "start": queue.start_offset,
        "end": queue.visible_end,
        "size_bytes": queue.size_bytes,
        "epoch": topic.leader_epoch(queue_id),
    }


# -- Groups


def known_groups(context: HttpContext) -> set[str]:
    """Groups with positions, or with live members of either family; by their Kafka spelling."""
    kafka = (group.group_id for group in context.groups.kafka_groups.groups())
    rocketmq = map(group_of_rocketmq, context.groups.rocketmq_members.consumers)
    return {*context.groups.positions.groups(), *kafka, *rocketmq}


def has_group(context: HttpContext, name: str) -> bool:
    """Whether a group, in either spelling, has positions, members or dead letters."""
    group = group_of_rocketmq(name)
    dead_letters = context.topics.by_rocketmq_name(dead_letter_topic(context.groups.rocketmq_groups.name_of(group)))
    return dead_letters is not None or group in known_groups(context)


def groups(context: HttpContext) -> Iterator[Json | None]:
    for name in sorted(known_groups(context)):
        yield (yield from _group_summary(context, name))


def group(context: HttpContext, name: str) -> Iterator[bytes | None]:
    """Describe one group that is known."""
    summary = yield from _group_summary(context, name)
    yield from object_with(summary | _failed(context, name), "positions", _positions(context, name))


def _group_summary(context: HttpContext, name: str) -> Generator[None, None, Json]:
    found = yield from context.groups.lags.of_group(name)
    active = context.groups.client_protocols.active(name)
    return {
        "name": name,
        "active": active.value if active else None,
        "members": _member_count(context, name),
        "topics": sorted(found.topics),
        "lag": found.lag,
        "lag_without_position": found.lag_without_position,
        "queues_without_position": found.queues_without_position,
    }


def _member_count(context: HttpContext, name: str) -> int:
    kafka = context.groups.kafka_groups.group(name)
    return (
        len(kafka.members)
        if kafka
        else len(context.groups.rocketmq_members.client_ids(context.groups.rocketmq_groups.name_of(name)))
    )


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
