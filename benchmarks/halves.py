"""A million half messages without a verdict: their cost, and the rates of sends and check-backs beside them.

    before     loads of transactional sends; half messages that are due at once, until each was asked about
    a million  with an immunity of an hour
    after      the same loads and checks again; memory; kill -9, and the time to the first send

The producer is the least of a RocketMQ client (`Asked`), for a million by a stock one take minutes: it sends requests
in blocks, all with the same bytes, and rolls back what it is asked about.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Final

from duolog.protocol.framing import FrameReader
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.protocol.rocketmq.messages import properties
from duolog.protocol.rocketmq.messages.flags import TRANSACTION_ROLLBACK
from duolog.protocol.rocketmq.remoting import RemotingCommand

if TYPE_CHECKING:
    from benchmarks.contenders import Contender

BLOCK: Final = 128  # Requests that are sent before their answers are awaited.
BODY_BYTES: Final = 100
IMMUNITY_S: Final = 3600
DUE_S: Final = 6  # The time to send the half messages that are checked.
WITHIN_S: Final = 120.0
GROUP: Final = "bench-undecided"


class Asked:
    """A producer of half messages that answers each check-back with a rollback."""

    def __init__(self, broker: Contender, topic: str) -> None:
        # The RocketMQ port serves all codes, at the address of the name server too.
        host, _, port = broker.namesrv.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), WITHIN_S)
        self._frames = FrameReader(remoting.FRAME_BYTES_MAX)
        self._topic = topic
        self._checks: list[RemotingCommand] = []  # Check-backs without an answer.

    def close(self) -> None:
        self._socket.close()

    def send(self, count: int, immunity_s: int) -> None:
        """Send half messages, and wait until all are stored."""
        raw = properties.encode(
            {
                properties.TRAN_MSG: "true",
                properties.PGROUP: GROUP,
                properties.UNIQ_KEY: "7F00000100000000000000000000BEEF",
                properties.CHECK_IMMUNITY_TIME_IN_SECONDS: str(immunity_s),
            }
        )
        fields = {
            "a": GROUP, "b": self._topic, "c": "TBW102", "d": "4", "e": "0", "f": "4",
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": raw, "j": "0", "k": "false", "l": "0", "m": "false",
        }  # fmt: skip
        one = b"".join(remoting.encode(remoting.request(RequestCode.SEND_MESSAGE_V2, 1, fields, bytes(BODY_BYTES))))
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            self._socket.sendall(one * size)
            answered = 0
            while answered < size:
                answered += self._hear()

    def checks_per_s(self, count: int) -> float:
        """Send half messages that are due soon; return the rate of their check-backs, from the first to the last."""
        self.send(count, DUE_S)
        while not self._checks:
            self._hear()
        start, asked = time.monotonic(), 0
        while asked < count:
            asked += len(self._checks)
            self._socket.sendall(b"".join(map(_roll_back, self._checks)))
            self._checks.clear()
            if asked < count:
                self._hear()
        return asked / (time.monotonic() - start)

    def _hear(self) -> int:
        """Read from the socket: keep check-backs, and count answers."""
        answers = 0
        for frame in self._frames.feed(self._socket.recv(1 << 18)):
            command = remoting.decode(frame)
            if command.code == RequestCode.CHECK_TRANSACTION_STATE:
                self._checks.append(command)
            elif command.code:
                raise RuntimeError(f"a half message was refused: {command.code} {command.remark}")
            else:
                answers += 1
        return answers


def _roll_back(check: RemotingCommand) -> bytes:
    fields = {
        "producerGroup": GROUP,
        "tranStateTableOffset": check.ext["tranStateTableOffset"],
        "commitLogOffset": check.ext["commitLogOffset"],
        "commitOrRollback": str(TRANSACTION_ROLLBACK),
        "fromTransactionCheck": "true",
        "msgId": check.ext.get("msgId", ""),
    }
    return b"".join(remoting.encode(remoting.request(RequestCode.END_TRANSACTION, 1, fields, oneway=True)))
