"""RocketMQ connections with hooks (`bridge/hooks.py`). They are used only if hooks are installed.

    frame ─> before-hooks, in a thread ─> take(), as without hooks ─> send() ─> after-hooks, in a thread

While hooks process a request, the request counts as unanswered. Requests of one connection may overtake each other
during that time, as in Apache RocketMQ, which has thread pools for requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from duolog.bridge.hooks import (
    Consumed,
    Hooks,
    Refuse,
    Request,
    ResponseStatus,
    Send,
    Sent,
)
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.producing.send_batch import BATCH_MESSAGES_MAX
from duolog.bridge.rocketmq.requests.connection import ConnectionContext, RocketMQConnection
from duolog.bridge.rocketmq.requests.request_row import Row
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.security.session import Session
from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.headers import SendRequest
from duolog.protocol.rocketmq.messages import batch, flags, properties
from duolog.protocol.rocketmq.messages.batch import Part
from duolog.protocol.rocketmq.messages.compression import inflate_body
from duolog.protocol.rocketmq.remoting import RemotingCommand

_SENDS: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_LENGTH_BYTES: Final = 4  # The length field in front of a frame.


@dataclass(slots=True)
class _HookedRequest:
    """A request in progress: what its hooks were given, and its messages if it is a send."""

    request: Request
    sends: Sequence[Send] = ()
    changed: tuple[dict[str, str], bytes] | None = None  # Header fields and body, if a hook changed the message.


class HookedConnection(RocketMQConnection):
    """The connection of one client to the RocketMQ port, with hooks.

    The class has more than 20 methods and 15 fields because it extends RocketMQConnection.
    """

    __slots__ = ("_hooks", "_requests")

    def __init__(self, context: ConnectionContext, hooks: Hooks) -> None:
        super().__init__(context)
        self._hooks = hooks
        # By opaque, the oldest first. At most `rocketmq.unanswered_max` entries, because some requests are never
        # answered.
        self._requests: dict[int, _HookedRequest] = {}

    def take(self, command: RemotingCommand) -> None:
        if self.unanswered >= self.bounds.unanswered_max:
            super().take(command)  # The base class refuses the request.
            return
        assert isinstance(command.body, memoryview), "decoded from a frame"
        asked = _HookedRequest(
            Request(command.code, _request_name(command.code), endpoint(*self.peer), dict(command.ext))
        )
        work = partial(_call_before_hooks, self._hooks, asked, command.body, self.context.inflate_bytes_max)
        self.unanswered += 1
        self._hooks.before(
            work, partial(self._continue_with, command, asked, self.session), self.server.clock.mono_ms()
        )

    def _continue_with(
        self,
        command: RemotingCommand,
        asked: _HookedRequest,
        session: Session | None,
        outcome: _HookedRequest | Refuse | None,
    ) -> None:
        self.answered()
        if self.closed:
            return
        self.session = session  # Another request of the connection may have come from another user meanwhile.
        try:
            self._handle_now(command, asked, outcome)
        except Exception as error:  # noqa: BLE001 - contained
            self.broken(error, "hooks")

    def _handle_now(
        self, command: RemotingCommand, asked: _HookedRequest, outcome: _HookedRequest | Refuse | None
    ) -> None:
        if outcome is None:
            # The thread may still change the other object.
            asked = _HookedRequest(asked.request)
        if not command.is_oneway:
            self._remember(command.opaque, asked)
        if asked.changed is not None:
            fields, body = asked.changed
            command.ext, command.body = fields, memoryview(body)
        if not isinstance(outcome, Refuse):
            super().take(command)
        elif not command.is_oneway:
            self.reply(command, answer(command, ResponseCode.NO_PERMISSION, str(outcome)))

    def _remember(self, opaque: int, asked: _HookedRequest) -> None:
        """Keep a request until it is answered; a further request with the same opaque replaces it."""
        self._requests.pop(opaque, None)
        if len(self._requests) >= self.bounds.unanswered_max:
            del self._requests[next(iter(self._requests))]
        self._requests[opaque] = asked

    def send(self, answer: Answer, asked: RemotingCommand, row: Row | None, *, is_held: bool = False) -> None:
        answered = remoting.decode(memoryview(b"".join(answer.buffers))[_LENGTH_BYTES:])
        hooked = self._requests.pop(answered.opaque, None)
        if hooked is not None and self._hooks.has("after_request", "after_send", "consumed"):
            self._hooks.after(partial(_call_after_hooks, self._hooks, hooked, answered))
        super().send(answer, asked, row, is_held=is_held)

    def connection_lost(self, error: Exception | None) -> None:
        self._requests.clear()
        super().connection_lost(error)


# -- In a worker thread


def _call_before_hooks(hooks: Hooks, asked: _HookedRequest, body: memoryview, inflate_bytes_max: int) -> _HookedRequest:
    """Call the before-hooks for a request and its messages. Raises Refuse."""
    hooks.call("before_request", asked.request)
    if asked.request.code in _SENDS and hooks.has("before_send", "after_send"):
        try:
            _call_before_sends(hooks, asked, body, inflate_bytes_max)
        except ProtocolError:
            pass  # The handler will raise the same error, and answer it.
    return asked


def _call_before_sends(hooks: Hooks, asked: _HookedRequest, body: memoryview, inflate_bytes_max: int) -> None:
    request = asked.request
    header = SendRequest.parse(request.fields)
    is_batch = header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
    parts = (
        batch.decode(body, BATCH_MESSAGES_MAX)
        if is_batch
        else [Part(header.flag, inflate_body(body, header.sys_flag, inflate_bytes_max), header.properties.encode())]
    )
    sends = [
        Send(header.topic, header.producer_group, request.client, bytes(part.body), properties.parse(part.properties))
        for part in parts
    ]
    asked.sends = sends  # After-hooks of a refused request get the unchanged messages.
    asked.sends = [hooks.changed(send) for send in sends]
    if asked.sends == sends:
        return
    if is_batch:
        changed = [
            Part(part.flag, send.body, properties.encode(send.properties).encode())
            for part, send in zip(parts, asked.sends, strict=True)
        ]
        asked.changed = dict(request.fields), batch.encode(changed)
    else:
        (send,) = asked.sends
        asked.changed = _with_properties(request.fields, header, properties.encode(send.properties)), send.body


def _with_properties(fields: Mapping[str, str], header: SendRequest, raw: str) -> dict[str, str]:
    """Return the header fields of a send with changed properties and an uncompressed body."""
    properties_name, sys_flag_name = ("i", "f") if "a" in fields else ("properties", "sysFlag")
    sys_flag = header.sys_flag & ~(flags.COMPRESSED | flags.COMPRESSION_MASK)
    return {**fields, properties_name: raw, sys_flag_name: str(sys_flag)}


def _call_after_hooks(hooks: Hooks, asked: _HookedRequest, answered: RemotingCommand) -> None:
    """Call the after-hooks for the answer to a request."""
    request, outcome = asked.request, ResponseStatus(answered.code, answered.remark or "")
    hooks.call("after_request", request, outcome)
    if asked.sends:
        offset, queue_id = int(answered.ext.get("queueOffset", -1)), int(answered.ext.get("queueId", -1))
        hooks.call("after_send", asked.sends, Sent(outcome, answered.ext.get("msgId", ""), queue_id, offset))
    elif request.code in _PULLS and answered.code == ResponseCode.SUCCESS:
        assert isinstance(answered.body, memoryview), "decoded from a frame"
        fields = request.fields
        consumed = Consumed(
            fields["topic"], fields["consumerGroup"], request.client, int(fields["queueId"]),
            int(fields["queueOffset"]), int(answered.ext["nextBeginOffset"]), len(answered.body),
        )  # fmt: skip
        hooks.call("consumed", consumed)


def _request_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)
