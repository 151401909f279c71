"""What POP consumers and the broker tell each other about popped messages, as text.

    receipt              start offset, pop time, invisible time, revive queue, retry flag, broker, queue id, offset;
                         Apache's gRPC proxy appends the message's position in the log
    startOffsetInfo      retry flag, queue id, start offset                            ; for each queue
    msgOffsetInfo        retry flag, queue id, offset,offset,...                       ;
    orderCountInfo       retry flag, place, how often the messages there failed        ;

Parts are separated by spaces. A client makes a message's receipt of the three infos and of what the answer says, and
sends it back with its ack. The retry flag says whether the queue is the topic's own (0) or of a retry topic, and of
which name: `%RETRY%group_topic` (1) or `%RETRY%group+topic` (2). In orderCountInfo a queue id stands for the least
count of the queue, and `qo<queue id>%<offset>` for one message. Source: ExtraInfoUtil.java, KeyBuilder.java.
"""

import base64
from collections.abc import Iterable
from typing import Final, NamedTuple

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.names import RETRY_PREFIX

REVIVE_QUEUE: Final = 0  # Of Java's broker; here nothing is kept in such a queue.
ORDER_REVIVE_QUEUE: Final = 999  # By which a client knows that it popped in order.
RECEIPT_PARTS: Final = 8  # Parts that follow these are ignored, as `ExtraInfoUtil` ignores them.
NUMBER_CHARACTERS_MAX: Final = 20  # Of an int64 with its sign.
BITS_BYTES_MAX: Final = 1 << 10  # Of one batch of acks.


NOT_RETRIED: Final = "0"
RETRIED: Final = "1"
RETRIED_V2: Final = "2"
_SEPARATORS: Final = {RETRIED: "_", RETRIED_V2: "+"}


class Receipt(NamedTuple):
    """What names one popped message, and when it was popped."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker: str
    queue_id: int
    offset: int

    def text(self) -> str:
        return " ".join(
            map(
                str,
                (
                    self.start_offset, self.pop_ms, self.invisible_ms, self.revive_queue, self.retry, self.broker,
                    self.queue_id, self.offset,
                ),
            )
        )  # fmt: skip


def parse_receipt(text: str) -> Receipt:
    """Read a receipt. Raises ProtocolError."""
    try:
        start, pop_ms, invisible_ms, revive_queue, retry, broker, queue_id, offset, *_ = text.split(" ", RECEIPT_PARTS)
        if max(map(len, (start, pop_ms, invisible_ms, revive_queue, queue_id, offset))) > NUMBER_CHARACTERS_MAX:
            raise ValueError("a number is too long")
        return Receipt(
            int(start), int(pop_ms), int(invisible_ms), int(revive_queue), retry, broker, int(queue_id), int(offset)
        )
    except ValueError:
        raise ProtocolError(f"{text[:200]!r} is no receipt of a popped message") from None


def real_topic(group: str, topic: str, retry: str) -> str:
    """Name the topic in which a popped message lies: `topic`, or by the retry flag the group's retry topic for it.

    What is not acked of a retry topic goes to that same topic again.
    """
    separator = _SEPARATORS.get(retry)
    if separator is None or topic.startswith(RETRY_PREFIX):
        return topic
    return f"{RETRY_PREFIX}{group}{separator}{topic}"


def queue_info(retry: str, place: object, value: object) -> str:
    """Write what one of the infos has of one queue, or of one message."""
    return f"{retry} {place} {value}"


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
