"""The class FailedLogins: requests of one connection that were signed with a wrong secret key, until their answers."""

from collections import deque
from typing import Any, Final

from duolog.bridge.rocketmq.access.gate import WrongSignature
from duolog.protocol.rocketmq.remoting import RemotingCommand

_NO_FIELDS: Final[dict[str, str]] = {}


class FailedLogins:
    """Answers them one after another, each after the delay; until then, the connection receives no request."""

    __slots__ = ("_connection", "_delay_ms", "_waiting")

    def __init__(self, connection: Any, delay_ms: int) -> None:
        self._connection, self._delay_ms = connection, delay_ms
        self._waiting: deque[tuple[RemotingCommand, WrongSignature]] = deque()

    def refuse(self, asked: RemotingCommand, error: WrongSignature) -> None:
        """Answer a request later; others that failed come after it."""
        connection = self._connection
        if not self._delay_ms:
            connection.reply(asked, connection.refusal(asked, error))
            return
        drop_content(asked)
        self._waiting.append((asked, error))
        connection.unanswered += 1
        connection.is_busy = True
        connection.hold()
        if len(self._waiting) == 1:
            connection.server.timed_calls.wait(self._delay_ms, self._refuse_next)

    def _refuse_next(self, _: None) -> None:
        connection = self._connection
        if connection.closed:
            return
        asked, error = self._waiting.popleft()
        connection.is_busy = bool(self._waiting)
        connection.reply(asked, connection.refusal(asked, error))
        connection.answered()
        if self._waiting:
            connection.server.timed_calls.wait(self._delay_ms, self._refuse_next)


def drop_content(command: RemotingCommand) -> None:
    """Drop the fields of a request that its answer does not need; each of them may take 16 MiB."""
    command.ext, command.body, command.remark, command.language = _NO_FIELDS, b"", None, ""
