"""GET /api/groups/{name}/members: the live members of a group of either client protocol.

`assignment` is what the group's leader assigned to a Kafka member. It is null for RocketMQ's consumers, which divide
the queues among themselves, and for a Kafka member whose assignment is not in the format of consumers.
"""

import struct
from collections.abc import Iterator
from typing import Final

from aiohttp import web

from duolog.bridge.http.answers import Json, Listing, object_with
from duolog.bridge.http.api.group_views import known_groups
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import check_query
from duolog.bridge.kafka.group_offsets import topics_of
from duolog.bridge.kafka.groups.members import Member
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.connection import Connection
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.primitive_types import read_classic_string
from duolog.protocol.names import group_of_rocketmq

CONSUMER: Final = "consumer"
_I32: Final = struct.Struct(">i")


async def get_members(context: HttpContext, request: web.Request) -> web.StreamResponse:
    check_query(request, set())
    name = group_of_rocketmq(request.match_info["name"])
    if name not in known_groups(context):
        raise web.HTTPNotFound(text=f"there is no group {request.match_info['name'][:300]}")
    return Listing(object_with({"group": name}, "members", _members(context, name)))


def _members(context: HttpContext, name: str) -> Iterator[Json | None]:
    kafka = context.groups.kafka_groups.group(name)
    if kafka is not None:
        is_consumer = kafka.protocol_type == CONSUMER
        for member in list(kafka.members):
            yield _kafka_row(member, kafka.protocol_name, is_consumer=is_consumer)
            yield None
    rocketmq = context.groups.rocketmq_members.consumers.get(context.groups.rocketmq_groups.name_of(name))
    if rocketmq is not None:
        for channel, client in list(rocketmq.channels.items()):
            yield {
                "wire": "rocketmq",
                "member": client.client_id,
                "client_id": client.client_id,
                "instance_id": None,
                "host": endpoint(*channel.peer[:2]) if isinstance(channel, Connection) else "",
                "language": client.language,
                "topics": sorted(rocketmq.subscriptions),
                "assignment": None,
            }


def _kafka_row(member: Member, protocol_name: str | None, *, is_consumer: bool) -> Json:
    return {
        "wire": "kafka",
        "member": member.member_id,
        "client_id": member.client_id,
        "instance_id": member.instance_id,
        "host": member.client_host,
        "language": "",
        "topics": sorted(set(topics_of(member.metadata_of(protocol_name)))) if is_consumer else [],
        "assignment": assignment(member.assignment) if is_consumer else None,
    }


def assignment(encoded: bytes) -> list[Json] | None:
    """Return the topics and queues of a ConsumerProtocolAssignment: version i16, then topics with arrays of i32."""
    found: list[Json] = []
    if not encoded:
        return found
    try:
        (count,) = _I32.unpack_from(encoded, 2)
        at = 2 + _I32.size
        for _ in range(count):
            topic, at = read_classic_string(encoded, at)
            (queues,) = _I32.unpack_from(encoded, at)
            at += _I32.size
            if not 0 <= queues <= (len(encoded) - at) // _I32.size:
                return None
            found.append({"topic": topic or "", "queues": list(struct.unpack_from(f">{queues}i", encoded, at))})
            at += queues * _I32.size
    except (struct.error, IndexError, UnicodeDecodeError, ProtocolError):
        return None
    return found
