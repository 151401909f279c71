"""The texts that POP consumers and the broker exchange about popped messages: receipts and the infos of an answer.

    receipt              start offset, pop time, invisible time, revive queue, retry flag, broker, queue id, offset;
                         Apache's gRPC proxy appends the message's position in the log
    startOffsetInfo      retry flag, queue id, start offset                            ; for each queue
    msgOffsetInfo        retry flag, queue id, offset,offset,...                       ;
    orderCountInfo       retry flag, place, how often the messages there failed        ;

Parts are separated by spaces. A client builds the receipt of each message from the three infos and the header of the
answer, and sends it with its ack. The retry flag is 0 for a queue of the topic itself, 1 for a queue of the retry topic
`%RETRY%group_topic`, and 2 for a queue of the retry topic `%RETRY%group+topic`. In orderCountInfo, the place is a queue
id, for the least count in the queue, or `qo<queue id>%<offset>`, for one message.
Source: ExtraInfoUtil.java, KeyBuilder.java.
"""

import base64
from collections.abc import Iterable
from typing import Final, NamedTuple

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.names import RETRY_PREFIX

REVIVE_QUEUE: Final = 0  # Apache RocketMQ stores pop checkpoints in this queue of its revive topic; Duolog has none.
ORDER_REVIVE_QUEUE: Final = 999  # The revive queue id that marks an orderly pop for clients.
RECEIPT_PARTS: Final = 8  # Further parts are ignored, as in ExtraInfoUtil.
NUMBER_CHARACTERS_MAX: Final = 20  # The length of an int64 with its sign.
BITS_BYTES_MAX: Final = 1 << 10  # The largest bit set of one batch ack.


NOT_RETRIED: Final = "0"
RETRIED: Final = "1"
RETRIED_V2: Final = "2"
_SEPARATORS: Final = {RETRIED: "_", RETRIED_V2: "+"}


class Receipt(NamedTuple):
    """The decoded receipt of one popped message. `retry` is the retry flag."""

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
    """Decode a receipt. Raises ProtocolError."""
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
    """Return the topic that contains a popped message: `topic`, or a retry topic of the group, by the retry flag.

    If `topic` is a retry topic itself, it is returned.
    """
    separator = _SEPARATORS.get(retry)
    if separator is None or topic.startswith(RETRY_PREFIX):
        return topic
    return f"{RETRY_PREFIX}{group}{separator}{topic}"


def queue_info(retry: str, place: object, value: object) -> str:
    """Return the part of an info for one queue, or for one message."""
    return f"{retry} {place} {value}"


def join_infos(infos: Iterable[str]) -> str:
    return ";".join(infos)


class BitSet:
    """A bit set in the encoding of Java's BitSet.toByteArray and base64.

    The constructor raises ProtocolError if the text is not base64 or has more than BITS_BYTES_MAX bytes.
    """

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
