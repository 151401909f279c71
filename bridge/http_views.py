"""What the JSON API says about the broker, its topics and its groups: plain dicts, computed when asked for.

Offsets count records; `lag` is what a group has not read yet; times are wall milliseconds.
"""

import os
import resource
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Any

from bridge.failed import failed_of
from bridge.server import endpoint
from bridge.topics import QUEUE_ID_BITS, Topic
from protocol.names import group_of_rocketmq, rocketmq_group
from protocol.rocketmq.names import dead_letter_topic

if TYPE_CHECKING:
    from bridge.broker import Broker

Json = dict[str, Any]

_PAGE_BYTES = resource.getpagesize()


# -- The broker


def status(broker: "Broker") -> Json:
    store, server = broker.store, broker.server
    return {
        "version": installed_version("duolog"),
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


def poison(broker: "Broker") -> dict[str, Any]:
    """Stored records that could not be processed since the start: how many by kind, and the newest of them."""
    return {"counts": broker.poison.counts, "records": [each._asdict() for each in broker.poison.all()]}


def segments(broker: "Broker") -> list[Json]:
    """List the log's files; the last one is written to. A gap stands for files that retention removed."""
    return [
        {"start": segment.start, "end": segment.end, "is_gap": segment.is_gap, "path": segment.path}
        for segment in broker.store.segments()
    ]


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


def topic(broker: "Broker", topic: Topic) -> Json:
    return topic_summary(topic) | {
        "id": str(topic.id),
        "number": topic.number,
        "created_ms": topic.created_ms,
        "configs": dict(topic.configs),
        "is_paused": broker.delays.is_paused(topic),
        "queues": [
            {
                "queue": queue_id,
                "start": queue.start_offset,
                "end": queue.visible_end,
                "size_bytes": queue.size_bytes,
                "epoch": topic.leader_epoch(queue_id),
            }
            for queue_id, queue in enumerate(topic.queues)
        ],
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
    dead_letters = broker.topics.by_rocketmq_name(dead_letter_topic(rocketmq_group(group)))
    return dead_letters is not None or group in known_groups(broker)


def groups(broker: "Broker") -> list[Json]:
    return [_group_summary(broker, name) for name in sorted(known_groups(broker))]


def group(broker: "Broker", name: str) -> Json | None:
    """Describe one group, None if nobody knows it."""
    if name not in known_groups(broker):
        return None
    return _group_summary(broker, name) | _failed(broker, name) | {"positions": _positions(broker, name)}


def _group_summary(broker: "Broker", name: str) -> Json:
    active = broker.families.active(name)
    positions = _positions(broker, name)
    return {
        "name": name,
        "active": active.value if active else None,
        "members": _member_count(broker, name),
        "topics": sorted({position["topic"] for position in positions}),
        "lag": sum(position["lag"] for position in positions),
    }


def _member_count(broker: "Broker", name: str) -> int:
    kafka = broker.kafka_groups.group(name)
    return len(kafka.members) if kafka else len(broker.rocketmq_members.client_ids(rocketmq_group(name)))


def _failed(broker: "Broker", name: str) -> Json:
    retries, dead_letters = failed_of(broker, name)
    return {"retries_waiting": retries, "dead_letters": dead_letters}


def _positions(broker: "Broker", name: str) -> list[Json]:
    rows = []
    for key, position in sorted(broker.positions.all_of(name).items()):
        queue = broker.topics.queue(key)
        found = broker.topics.by_number(key >> QUEUE_ID_BITS)
        if queue is None or found is None:
            continue
        rows.append(
            {
                "topic": found.name,
                "queue": key & (1 << QUEUE_ID_BITS) - 1,
                "position": position.offset,
                "start": queue.start_offset,
                "end": queue.visible_end,
                "lag": max(0, queue.visible_end - max(position.offset, queue.start_offset)),
                "committed_ms": position.commit_ms,
            }
        )
    return rows
