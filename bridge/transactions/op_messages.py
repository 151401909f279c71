"""Op messages: the record in RMQ_SYS_TRANS_OP_HALF_TOPIC that half messages are decided.

An op message has tag `d`. Its body has the offsets of the half messages as text, `17,18,`, as Apache RocketMQ writes
it. The entry's `extra` has their verdicts, a byte for each. The property TRAN_VERDICTS, which Apache RocketMQ does not
write, is for readers of the topic. It has for each offset

    C 2 1795231843000 orders orders/1/17,

These are the verdict (C: committed, R: rolled back, G: given up), the number of check-backs, the time when the half
message was stored, its topic, and topic/queue/offset of the frame that the verdict appends. The last is `-` after a
rollback, and the place of the pending message if the message is delayed.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from duolog.bridge.data.units import NOTHING, UnitPlan
from duolog.bridge.records import frame_formats
from duolog.bridge.state.topics import Topics
from duolog.protocol.names import kafka_name
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import tags
from duolog.protocol.rocketmq.messages.message import Message, Writer
from duolog.protocol.rocketmq.names import OP_HALF_TOPIC
from duolog.store.index.queue import Queue
from duolog.store.unit import Frame
from duolog.txn.half import HalfMessages
from duolog.txn.half_verdicts import HalfVerdict

OP_TAG: Final = "d"  # TransactionalMessageUtil.java#REMOVE_TAG
PATHS_CACHED_MAX: Final = 4096  # When it is reached, the cache is cleared.

_LETTERS: Final = "-CRG"  # By verdict.
_GIVEN_UP: Final = HalfVerdict.GIVEN_UP
_OP_CODE: Final = tags.hash_code(OP_TAG)


class HalfDecision(NamedTuple):
    """A verdict on a half message, and what it appends."""

    verdict: HalfVerdict
    topic: str  # The destination of the half message, in either spelling.
    stored_ms: int  # When the half message was stored.
    plan: UnitPlan = NOTHING  # The message that a commit makes visible, or the copy of one that is given up.


class OpMessages:
    """Makes the frames of op messages."""

    def __init__(self, queue: Queue, topics: Topics, state: HalfMessages, store_host: bytes) -> None:
        self._queue, self._topics, self._state, self._store_host = queue, topics, state, store_host
        self._writer = Writer(OP_HALF_TOPIC, 0, store_host)
        self._paths: dict[int, str] = {}  # "topic/queue/" by queue key; no key is ever used for another queue.

    def frame(self, decisions: Mapping[int, HalfDecision], now_ms: int) -> Frame:
        """Make the frame that records these verdicts, by the offsets of their half messages."""
        text = b"".join([b"%d," % offset for offset in decisions])
        properties = f"TAGS\x01{OP_TAG}\x02TRAN_VERDICTS\x01{self._verdicts(decisions)}\x02".encode()
        op = Message("", text, properties, born_ms=now_ms, born_host=self._store_host)
        verdicts = bytes([decision.verdict for decision in decisions.values()])
        return message_frame(self._queue, self._writer, op, now_ms, _OP_CODE, verdicts)

    def _verdicts(self, decisions: Mapping[int, HalfDecision]) -> str:
        """Make the property TRAN_VERDICTS, with the offsets that the frames are about to get."""
        verdicts: list[str] = []
        ahead: dict[int, int] = {}  # By queue key: how many frames of this unit come before.
        for offset, (verdict, topic, stored_ms, plan) in decisions.items():
            checks = self._state.checks_of(offset)
            # The last check gives the half message up, and sends no check-back.
            checks -= verdict is _GIVEN_UP and checks > 0
            place = "-"
            for frame in plan.frames:
                queue = frame.queue
                at = ahead.get(queue.key, 0)
                ahead[queue.key] = at + 1
                if place == "-":
                    place = f"{self._path_of(queue)}{queue.end_offset + at}"
            verdicts.append(f"{_LETTERS[verdict]} {checks} {stored_ms} {kafka_name(topic)} {place},")
        return "".join(verdicts)

    def _path_of(self, queue: Queue) -> str:
        path = self._paths.get(queue.key)
        if path is None:
            topic = self._topics.by_number(queue.topic)
            assert topic is not None, "a topic of which a frame was made"
            if len(self._paths) >= PATHS_CACHED_MAX:
                self._paths.clear()
            path = self._paths[queue.key] = f"{topic.kafka_name}/{queue.queue_id}/"
        return path


def message_frame(
    queue: Queue, writer: Writer, message: Message, now_ms: int, code: int = tags.NO_TAG, extra: bytes = b""
) -> Frame:
    """Make the frame of a RocketMQ message for a queue of one of the transaction topics."""
    record = b"".join(writer.pieces(message))
    index_ms = min(message.born_ms, now_ms)  # The client sets the born time: see `TopicSettings.index_ms`.
    return Frame(queue, frame_formats.ROCKETMQ, record, 1, index_ms, code, rocketmq_message.stamp, extra)
