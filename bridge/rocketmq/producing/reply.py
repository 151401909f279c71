"""Replies to request messages: SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325).

    requester ── a message with REPLY_TO_CLIENT ──> its topic ──> replier
    requester <── PUSH_REPLY_MESSAGE_TO_CLIENT (326) ── broker <── 324: a message with the same property ── replier

The broker finds the requester by the client id in its heartbeats, in any producer group. The push is one-way, because
the requester knows itself whether a reply came in time; Java's broker blocks a thread for up to ten seconds for an
answer. After the push the reply is stored in the topic in the request, which is the cluster's reply topic. A reply to
an unknown client is refused and not stored. Source: ReplyMessageProcessor.java.
"""

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.producing.send import send_message
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.headers import PushReply, SendRequest
from duolog.protocol.rocketmq.messages import properties
from duolog.protocol.rocketmq.messages.message_id import unpack_host
from duolog.protocol.rocketmq.remoting import RemotingCommand


def send_reply(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2."""
    request = SendRequest.parse(command.ext)
    client_id = properties.get(request.properties.encode(), properties.REPLY_TO_CLIENT) or ""
    requester = context.groups.members.producers.channel_of(client_id)
    if requester is None:
        remark = f"push reply message fail, channel of <{client_id[:200]}> not found."
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)
    if request.batch:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a reply is one message, and no batch")
    stored = send_message(context, connection, command)
    assert stored is not None, "only a batch is answered later"
    pushed = _pushed(context, connection, request)
    assert isinstance(command.body, memoryview), "decoded from a frame"
    requester.calls.notify(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed.to_ext(), bytes(command.body))
    return stored


def _pushed(context: RocketMQContext, connection: RocketMQConnection, request: SendRequest) -> PushReply:
    now_ms = context.clock.now_ms()
    raw = properties.set_many(request.properties.encode(), {properties.PUSH_REPLY_TIME: str(now_ms)})
    return PushReply(
        producer_group=request.producer_group,
        topic=request.topic,
        default_topic=request.default_topic,
        default_topic_queue_nums=request.default_topic_queue_nums,
        queue_id=request.queue_id,
        sys_flag=request.sys_flag,
        born_timestamp=request.born_timestamp,
        flag=request.flag,
        properties=raw.decode(),
        reconsume_times=request.reconsume_times,
        unit_mode=request.unit_mode,
        born_host=_endpoint(connection.packed_peer),
        store_host=_endpoint(context.messages.publisher.messages.store_host),
        store_timestamp=now_ms,
    )


def _endpoint(host: bytes) -> str:
    ip, port = unpack_host(host)
    return f"{ip}:{port}"
