"""Classic consumer groups: JoinGroup 0..9, SyncGroup 0..5, Heartbeat 0..4, LeaveGroup 0..5, DescribeGroups 0..6,
ListGroups 0..5, DeleteGroups 0..2. `groups/` decides what a group does; this module converts requests and responses.

A group that is active in RocketMQ takes no Kafka members. They get INCONSISTENT_GROUP_PROTOCOL, which Kafka gives to
members without a protocol in common with the others, and which clients report at once.
"""

import logging
from collections.abc import Sequence
from typing import Any

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.groups.classic_group import ClassicGroup
from duolog.bridge.kafka.groups.coordinator import NAME_CHARACTERS_MAX
from duolog.bridge.kafka.groups.group_requests import (
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    SyncRequest,
    SyncResponse,
)
from duolog.bridge.kafka.groups.rebalance import GroupState
from duolog.bridge.kafka.groups.replies import Reply
from duolog.bridge.kafka.groups.waiting_request import WaitingRequest
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer, run_all
from duolog.bridge.kafka.requests.errors import ANSWERABLE, code_of
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.repeated_names import unique
from duolog.bridge.kafka.requests.request import (
    NO_THROTTLE,
    KafkaRequest,
    Steps,
    join_promises,
)
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.bridge.security.needs import cluster
from duolog.bridge.security.needs import group as group_need
from duolog.bridge.security.rules import Operation
from duolog.bridge.state.client_protocols import ClientProtocol
from duolog.protocol.kafka.api_messages import ErrorCode, milliseconds
from duolog.protocol.kafka.response import Elements
from duolog.store.entry import Promise

logger = logging.getLogger("kafka")

CONSUMER = "consumer"  # The protocol type of consumer groups; Kafka Connect, for example, has another one.
DELIVERED_AT_ONCE = 50  # Members described, and answers sent, in one turn of the loop.

_CLASSIC = "classic"  # The only type of group that the broker has, in lower case as in requests.


def send_replies(context: KafkaContext, replies: Sequence[Reply[WaitingRequest]]) -> None:
    """Send the replies of a group as answers; many of them, or large ones, in later turns of the loop."""
    if not replies:
        return
    has_time = context.group_work.add(len(replies), replies[0].ticket.connection.server)
    at_once = has_time and len(replies) <= DELIVERED_AT_ONCE
    for (connection, slot, request, group_id), given in replies:
        if isinstance(given, JoinResponse) and given.error is ErrorCode.none:
            connection.membership = (group_id, given.member_id)
        decided = _allowed(request, group_id, given)
        steps = _answer(context, request, decided)
        if at_once and (isinstance(decided, SyncResponse) or len(decided.members) <= DELIVERED_AT_ONCE):
            try:
                connection.outbox.fill(slot, run_all(steps))
            except Exception as error:  # noqa: BLE001 - the other members must get their answers
                connection.failed(request, error, slot)
        else:
            context.sliced_requests.finish(connection, request, slot, steps)


def _allowed(request: KafkaRequest, group_id: str, decided: JoinResponse | SyncResponse) -> JoinResponse | SyncResponse:
    """Return the reply, or an error if the right to the group was taken away while the request waited.

    Neither metadata nor assignments reach the client then. It is a member until its session ends, as its heartbeats are
    refused, too.
    """
    if request.sees(group_need(group_id, Operation.READ)):
        return decided
    error = ErrorCode.group_authorization_failed
    return JoinResponse(error, decided.member_id) if isinstance(decided, JoinResponse) else SyncResponse(error)


def expire_sessions(context: KafkaContext, mono_ms: int) -> None:
    """End the sessions and the phases of rebalances whose time is up, and answer the requests that waited for them."""
    if not context.group_work.is_full:
        send_replies(context, context.groups.expire(mono_ms))


def _answer(context: KafkaContext, request: KafkaRequest, decided: JoinResponse | SyncResponse) -> Steps:
    entity = _joined(request, decided) if isinstance(decided, JoinResponse) else _synced(request, decided)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), None)


# -- The rebalance


def _warn_of_failed_messages(context: KafkaContext, group: str) -> None:
    """Log how many retries and dead letters of the group no Kafka consumer reads."""
    retries, dead_letters = context.count_unread_failures(group)
    if retries or dead_letters:
        logger.warning(
            "group moves to Kafka, which does not read its retries and dead letters group=%s retries=%d dead=%d",
            group, retries, dead_letters,
        )  # fmt: skip


def join_group(
    context: KafkaContext, connection: OrderedConnection, request: KafkaRequest
) -> Answer | OutboxSlot | None:
    """Pass the request to its group.

    The slot is filled when the group replies, often after other members have joined.
    """
    context.group_work.check()
    body = request.body
    if not context.client_protocols.admits(body.group_id, ClientProtocol.KAFKA):
        logger.warning(
            "member refused, because its group is active in RocketMQ group=%s client=%s peer=%s",
            body.group_id, request.client_id[:NAME_CHARACTERS_MAX], endpoint(*connection.peer),
        )  # fmt: skip
        return run_all(_answer(context, request, JoinResponse(ErrorCode.inconsistent_group_protocol, body.member_id)))
    was_empty = not context.groups.has_members(body.group_id)
    session_timeout_ms = milliseconds(body.session_timeout)
    join = JoinRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        client_id=request.client_id[:NAME_CHARACTERS_MAX],
        client_host=f"/{connection.peer[0]}",
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=milliseconds(body.rebalance_timeout) if request.version >= 1 else session_timeout_ms,
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols),
        member_id_required=request.version >= 4,
        can_skip_assignment=request.version >= 9,
    )
    slot = connection.outbox.reserve()
    waiter = WaitingRequest(connection, slot, request.without_body, body.group_id)
    send_replies(context, context.groups.join(join, waiter, context.clock.mono_ms()))
    if was_empty and context.groups.has_members(body.group_id):
        _warn_of_failed_messages(context, body.group_id)
    return slot


def sync_group(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> OutboxSlot:
    """Pass the request to its group. The slot is filled when the leader has sent the assignments."""
    context.group_work.check()
    body = request.body
    sync = SyncRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        generation=body.generation_id,
        assignments=tuple((part.member_id, bytes(part.assignment)) for part in body.assignments),
        instance_id=getattr(body, "group_instance_id", None),
        protocol_type=getattr(body, "protocol_type", None),
        protocol_name=getattr(body, "protocol_name", None),
    )
    slot = connection.outbox.reserve()
    waiter = WaitingRequest(connection, slot, request.without_body, body.group_id)
    send_replies(context, context.groups.sync(sync, waiter, context.clock.mono_ms()))
    return slot


def heartbeat(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Answer:
    """Renew the session of a member, or tell the member to rejoin."""
    body = request.body
    instance_id = getattr(body, "group_instance_id", None)
    error = context.groups.heartbeat(
        body.group_id, body.member_id, instance_id, body.generation_id, context.clock.mono_ms()
    )
    if error is ErrorCode.none:  # The client may have opened this connection after it had joined over another one.
        connection.membership = (body.group_id, body.member_id)
    return request.answer(request.types.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=error))


def leave_group(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Remove members. Below version 3 a request names one member, whose error is that of the answer."""
    while context.group_work.is_full:
        yield
    body, types = request.body, request.types
    if request.version < 3:
        leavers = [MemberIdentity(body.member_id)]
    else:
        leavers = unique(MemberIdentity(member.member_id, member.group_instance_id) for member in body.members)
    errors, replies = context.groups.leave(body.group_id, leavers, context.clock.mono_ms())
    send_replies(context, replies)
    if request.version < 3:
        return request.answer(types.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=errors[0]))
    members = Elements(
        types.MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error)
        for leaver, error in zip(leavers, errors, strict=True)
    )
    entity = types.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, members=members)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), None)


def _joined(request: KafkaRequest, joined: JoinResponse) -> Any:
    types = request.types
    members = Elements(
        types.JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
        for member_id, instance_id, metadata in joined.members
    )
    return types.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        # Null is allowed from version 7 on.
        protocol_name=joined.protocol_name if request.version >= 7 else joined.protocol_name or "",
        leader=joined.leader_id,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=members,
    )


def _synced(request: KafkaRequest, synced: Any) -> Any:
    return request.types.SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )


# -- Listing, describing and deleting groups


def list_groups(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """List the groups with members or committed offsets, whichever client protocol committed these."""
    types = request.types
    states = {state.lower() for state in getattr(request.body, "states_filter", ())}
    group_types = {type_.lower() for type_ in getattr(request.body, "types_filter", ())}

    sees_all = request.sees(cluster(Operation.DESCRIBE))

    def listed(group_id: str) -> Any:
        if not sees_all and not request.sees(group_need(group_id, Operation.DESCRIBE)):
            return None
        protocol_type, state = _type_and_state(context, group_id, context.groups.group(group_id))
        if (states and state.lower() not in states) or (group_types and _CLASSIC not in group_types):
            return None
        return types.ListedGroup(group_id=group_id, protocol_type=protocol_type, group_state=state, group_type=_CLASSIC)

    group_ids = {*(group.group_id for group in context.groups.groups()), *context.group_offsets.groups()}
    entity = types.ListGroupsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, groups=Elements(map(listed, group_ids))
    )
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def _type_and_state(
    context: KafkaContext, group_id: str, group: ClassicGroup[WaitingRequest] | None
) -> tuple[str, str]:
    if group is not None:
        return group.protocol_type or "", group.state.value
    if context.client_protocols.active(group_id) is ClientProtocol.ROCKETMQ:
        # Java's AdminClient then reports that this is not a consumer group, instead of one without members.
        return ClientProtocol.ROCKETMQ.value, GroupState.STABLE.value
    return CONSUMER, GroupState.EMPTY.value


def describe_groups(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Describe groups; one without members and committed offsets is Dead."""
    groups = Elements(_described(context, request, group_id) for group_id in unique(request.body.groups))
    entity = request.types.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=groups)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def _described(context: KafkaContext, request: KafkaRequest, group_id: str) -> Any:
    group = context.groups.group(group_id)
    error, message = ErrorCode.none, None
    protocol_type, state = _type_and_state(context, group_id, group)
    if context.client_protocols.active(group_id) is None and group_id not in context.group_offsets:
        protocol_type, state = "", "Dead"
        if request.version >= 6:
            error, message = ErrorCode.group_id_not_found, f"Group {group_id} not found."
    is_stable = group is not None and group.state is GroupState.STABLE
    return request.types.DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type=protocol_type,
        protocol_data=(group.protocol_name or "") if group and is_stable else "",
        members=_described_members(request, group) if group else (),
    )


def _described_members(request: KafkaRequest, group: ClassicGroup[WaitingRequest]) -> Elements:
    protocol_name = group.protocol_name
    return Elements(
        request.types.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata_of(protocol_name),
            member_assignment=member.assignment,
        )
        for member in [*group.members]
    )


def delete_groups(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Delete the committed offsets of groups without members."""
    types = request.types
    promise: Promise | None = context.barrier()

    def deleted(group_id: str) -> Any:
        nonlocal promise
        error, kept = _delete(context, group_id)
        promise = join_promises(promise, kept)
        return types.DeletableGroupResult(group_id=group_id, error_code=error)

    results = Elements(map(deleted, unique(request.body.groups_names)))
    entity = types.DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=results)
    pieces = yield from encode_in_steps(context, request, entity)
    return make_answer(request, pieces, promise)


def _delete(context: KafkaContext, group_id: str) -> tuple[ErrorCode, Promise | None]:
    if context.client_protocols.active(group_id) is not None:
        return ErrorCode.non_empty_group, None
    if group_id not in context.group_offsets:
        return ErrorCode.group_id_not_found, None
    try:
        return ErrorCode.none, context.group_offsets.delete_group(group_id, context.clock.now_ms())
    except ANSWERABLE as error:
        return code_of(error), None
