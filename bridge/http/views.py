"""What the JSON API says about the broker, its topics and its groups: plain dicts, computed when asked for.

Offsets count records; `lag` is what a group has not read yet (`bridge/state/lag.py`); times are wall milliseconds. What
may be long is a generator of rows or of parts of the answer, in which None is a place where the loop may turn.
"""

import os
import resource
from collections.abc import Generator, Iterator
from functools import cache
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Any

from duolog.bridge.http.answers import object_with
from duolog.bridge.net.server import endpoint
from duolog.bridge.rocketmq.retry.dead_letters import failed_of
from duolog.bridge.state import lag
from duolog.bridge.state.topics import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.names import dead_letter_topic

if TYPE_CHECKING:
    from duolog.bridge.broker import Broker

Json = dict[str, Any]

_PAGE_BYTES = resource.getpagesize()


# -- The broker


def status(broker: "Broker") -> Json:
    store, server = broker.store, broker.server
    return {
        "version": _version(),
        "pid": os.getpid(),
        "cluster_id": broker.cluster_id,
        "ready": broker.not_ready_reason() or "yes",
        "uptime_ms": broker.clock.mono_ms() - broker.started_mono_ms,
        "listeners": {name: endpoint(host, port) for name, (host, port) in broker.listening.items()},
        "log": {
            "next_position": store.next_position,
            "written": store.written,
            "durable": store.durable,
            "flush": broker.options.store.flush,
        },
        "recovery": store.recovery._asdict(),
        "topics": len(broker.topics),
        "groups": len(known_groups(broker)),
        "connections": len(server.connections),
        "memory_bytes": resident_bytes(),
    }


@cache
def _version() -> str:
    return installed_version("duolog")


def poison(broker: "Broker") -> dict[str, Any]:
    """Stored records that could not be processed, also by earlier runs: how many by kind, and the newest of them."""
    return {"counts": broker.poison.counts, "records": [each._asdict() for each in broker.poison.all()]}


def segments(broker: "Broker") -> Iterator[Json]:
    """List the log's files; the last one is written to. A gap stands for files that retention removed."""
    for segment in list(broker.store.segments()):
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


def topics(broker: "Broker") -> Iterator[Json]:
    return map(topic_summary, list(broker.topics.all()))


def topic(broker: "Broker", topic: Topic) -> Iterator[bytes | None]:
    described = topic_summary(topic) | {
        "id": str(topic.id),
        "number": topic.number,
        "created_ms": topic.created_ms,
        "configs": dict(topic.configs),
        "is_paused": broker.delays.is_paused(topic),
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


def known_groups(broker: "Broker") -> set[str]:
    """Groups with positions, or with live members of either family; by their Kafka spelling."""
    kafka = (group.group_id for group in broker.kafka_groups.groups())
    rocketmq = map(group_of_rocketmq, broker.rocketmq_members.consumers)
    return {*broker.positions.groups(), *kafka, *rocketmq}


def has_group(broker: "Broker", name: str) -> bool:
    """Whether a group, in either spelling, has positions, members or dead letters."""
    group = group_of_rocketmq(name)
    dead_letters = broker.topics.by_rocketmq_name(dead_letter_topic(broker.rocketmq_groups.name_of(group)))
    return dead_letters is not None or group in known_groups(broker)


def groups(broker: "Broker") -> Iterator[Json | None]:
    for name in sorted(known_groups(broker)):
        yield (yield from _group_summary(broker, name))


def group(broker: "Broker", name: str) -> Iterator[bytes | None]:
    """Describe one group that is known."""
    summary = yield from _group_summary(broker, name)
    yield from object_with(summary | _failed(broker, name), "positions", _positions(broker, name))


def _group_summary(broker: "Broker", name: str) -> Generator[None, None, Json]:
    found = yield from lag.of_group(broker, name)
    active = broker.client_protocols.active(name)
    return {
        "name": name,
        "active": active.value if active else None,
        "members": _member_count(broker, name),
        "topics": sorted(found.topics),
        "lag": found.lag,
        "lag_without_position": found.lag_without_position,
        "queues_without_position": found.queues_without_position,
    }


def _member_count(broker: "Broker", name: str) -> int:
    kafka = broker.kafka_groups.group(name)
    return (
        len(kafka.members) if kafka else len(broker.rocketmq_members.client_ids(broker.rocketmq_groups.name_of(name)))
    )


def _failed(broker: "Broker", name: str) -> Json:
    retries, dead_letters = failed_of(broker, name)
    return {"retries_waiting": retries, "dead_letters": dead_letters}


def _positions(broker: "Broker", name: str) -> Iterator[Json | None]:
    for each in lag.of_queues(broker, name):
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
