"""What POP consumers and the broker tell each other about popped messages, as text.

    receipt              start offset, pop time, invisible time, revive queue, retry flag, broker, queue id, offset;
                         Apache's gRPC proxy appends the message's position in the log
    startOffsetInfo      retry flag, queue id, start offset                            ; for each queue
    msgOffsetInfo        retry flag, queue id, offset,offset,...                       ;
    orderCountInfo       retry flag, queue id, how often the queue's messages failed   ;

Parts are separated by spaces. A client makes a message's receipt of the three infos and of what the answer says, and
sends it back with its ack. The retry flag says whether the queue is the topic's own (0) or its retry topic's (1).
Source: ExtraInfoUtil.java, KeyBuilder.java.
"""

import base64
from collections.abc import Iterable
from typing import Final, NamedTuple

from protocol.errors import ProtocolError
from protocol.rocketmq.names import RETRY_PREFIX

REVIVE_QUEUE: Final = 0  # Of Java's broker; here nothing is kept in such a queue.
ORDER_REVIVE_QUEUE: Final = 999  # By which a client knows that it popped in order.
RECEIPT_PARTS: Final = 8  # Parts that follow these are ignored, as `ExtraInfoUtil` ignores them.
BITS_BYTES_MAX: Final = 1 << 10  # Of one batch of acks.


class Receipt(NamedTuple):
    """What names one popped message, and when it was popped."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    is_retry: bool
    broker: str
    queue_id: int
    offset: int

    def text(self) -> str:
        return " ".join(
            map(
                str,
                (
                    self.start_offset, self.pop_ms, self.invisible_ms, self.revive_queue, int(self.is_retry),
                    self.broker, self.queue_id, self.offset,
                ),
            )
        )  # fmt: skip


def parse_receipt(text: str) -> Receipt:
    """Read a receipt. Raises ProtocolError."""
    try:
        start, pop_ms, invisible_ms, revive_queue, retry, broker, queue_id, offset, *_ = text.split(" ", RECEIPT_PARTS)
        return Receipt(
            int(start), int(pop_ms), int(invisible_ms), int(revive_queue), retry != "0", broker, int(queue_id),
            int(offset),
        )  # fmt: skip
    except ValueError:
        raise ProtocolError(f"{text[:200]!r} is no receipt of a popped message") from None


def retry_topic_of(group: str, topic: str) -> str:
    """Name the topic that holds what `group` popped of `topic` and did not ack; of such a topic it is the same one."""
    return topic if topic.startswith(RETRY_PREFIX) else f"{RETRY_PREFIX}{group}_{topic}"


def queue_info(is_retry: bool, queue_id: int, value: object) -> str:
    """Write what one of the infos has of one queue."""
    return f"{int(is_retry)} {queue_id} {value}"


def join_infos(infos: Iterable[str]) -> str:
    return ";".join(infos)


class BitSet:
    """A Java BitSet, as it is in base64. Raises ProtocolError for what is none, or has more than BITS_BYTES_MAX."""

    __slots__ = ("_bytes",)

    def __init__(self, encoded: str) -> None:
        if len(encoded) > BITS_BYTES_MAX * 2:
            raise ProtocolError(f"set of bits in {len(encoded)} characters; {BITS_BYTES_MAX} bytes are allowed")
        try:
            self._bytes = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise ProtocolError(f"{encoded[:80]!r} is no set of bits") from None
        if len(self._bytes) > BITS_BYTES_MAX:
            raise ProtocolError(f"set of {len(self._bytes) * 8} bits; {BITS_BYTES_MAX * 8} are allowed")

    def has(self, bit: int) -> bool:
        return 0 <= bit < len(self._bytes) * 8 and bool(self._bytes[bit >> 3] >> (bit & 7) & 1)
