"""GET /api/clients: the open connections of clients with their consumer groups; ?limit=, the oldest first.

A RocketMQ client names its groups in each heartbeat. A Kafka client has several connections, and names its group only
on the one over which its member joined or sends heartbeats. Others with the same client id and host show the group,
too, if they share both with members of exactly one group. `idle_ms` counts from the last byte in either direction.
"""

from collections.abc import Iterable
from heapq import nsmallest
from operator import attrgetter
from typing import Any, Final

from aiohttp import web

from duolog.bridge.http.answers import Json, Listing, object_with
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import check_query, number
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.connection import Connection

CLIENTS_MAX: Final = 1000


async def get_clients(context: HttpContext, request: web.Request) -> web.StreamResponse:
    check_query(request, {"limit"})
    limit = number(request, "limit", 100, CLIENTS_MAX, lowest=1)
    connections = context.monitoring.server.connections
    found = [each for each in connections if isinstance(each, Connection)]
    by_channel = _clients_by_channel(context)
    mono_ms = context.clock.mono_ms()
    oldest = nsmallest(limit, found, key=attrgetter("made_mono_ms"))
    by_client = _groups_by_client(context, found)
    rows = (_row(context, each, by_channel, by_client, mono_ms) for each in oldest)
    return Listing(object_with({"count": len(connections)}, "clients", rows))


def _clients_by_channel(context: HttpContext) -> dict[Any, tuple[str, str, list[str]]]:
    """Return the client id, the language and the groups of each connection of a RocketMQ client."""
    found: dict[Any, tuple[str, str, list[str]]] = {}
    for name, group in context.groups.rocketmq_members.consumers.items():
        for channel, client in group.channels.items():
            found.setdefault(channel, (client.client_id, client.language, []))[2].append(name)
    return found


def _groups_by_client(context: HttpContext, connections: Iterable[Connection]) -> dict[tuple[str, str], set[str]]:
    """Return the groups whose members use connections of Kafka clients, by client id and host."""
    found: dict[tuple[str, str], set[str]] = {}
    for each in connections:
        if isinstance(each, OrderedConnection) and each.membership is not None and each.client_id:
            found.setdefault((each.client_id, each.peer[0]), set()).update(_groups_of(context, each))
    return found


def _row(
    context: HttpContext,
    connection: Connection,
    by_channel: dict[Any, tuple[str, str, list[str]]],
    by_client: dict[tuple[str, str], set[str]],
    mono_ms: int,
) -> Json:
    if isinstance(connection, OrderedConnection):
        client_id, language, groups = connection.client_id, "", _groups_of(context, connection)
        shared = by_client.get((client_id, connection.peer[0]), set())
        if not groups and len(shared) == 1:
            groups = [*shared]
    else:
        client_id, language, groups = by_channel.get(connection, ("", "", []))
    return {
        "wire": connection.wire,
        "peer": endpoint(*connection.peer[:2]),
        "client_id": client_id,
        "language": language,
        "groups": groups,
        "age_ms": mono_ms - connection.made_mono_ms,
        "idle_ms": max(0, mono_ms - connection.active_mono_ms),
        "last_request": connection.doing,
        "waiting_requests": len(connection.held),
        "unsent_bytes": connection.answers.pending_bytes,
    }


def _groups_of(context: HttpContext, connection: OrderedConnection) -> list[str]:
    """Return the group of the member that uses a connection of a Kafka client, if it is still a member."""
    if connection.membership is None:
        return []
    name, member_id = connection.membership
    group = context.groups.kafka_groups.group(name)
    return [name] if group is not None and member_id in group.members else []
