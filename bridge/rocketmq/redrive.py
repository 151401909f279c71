"""Dead letters go back to their group: `duolog group redrive`, POST /api/groups/{name}/redrive.

    %DLQ%group, from the group's position in it to its end ──> %RETRY%group, as if they had never failed

Only that group gets them again. A slice and the position behind it are one unit of the log: after a crash a redrive
goes on where it was, and nothing is redriven twice (unless the group itself expired, with all its positions).
"""

import asyncio
from typing import TYPE_CHECKING, Final

from bridge import lifetimes
from bridge.awaited import awaited
from bridge.failed import position_in
from bridge.families import Family
from bridge.reading import Later, Records
from bridge.records import CommittedPosition, Record
from bridge.rocketmq.retry import EXPIRED_AT, REASON, copy_of, group_config, retries_of
from bridge.topics import Topic
from protocol.names import group_of_rocketmq
from protocol.rocketmq import message, properties
from protocol.rocketmq.message import Message
from protocol.rocketmq.names import dead_letter_topic
from store.entry import Buffer, Promise
from store.queue import Queue

if TYPE_CHECKING:
    from bridge.broker import Broker

SLICE_MESSAGES_MAX: Final = 64  # Of one unit.
SLICE_BYTES_MAX: Final = 1 << 20


class RedriveRefused(Exception):
    """The group cannot take its dead letters back now."""


async def redrive(broker: "Broker", name: str) -> tuple[int, Promise]:
    """Give a group all that are its dead letters now: (how many, what an answer must wait for).

    Raises RedriveRefused, the door's exceptions and StoreError; what went back until then stays there.
    """
    group = group_of_rocketmq(name)
    if not broker.families.admits(group, Family.ROCKETMQ):
        raise RedriveRefused(f"the group {name} is active in Kafka, whose consumers do not read its retry topic")
    dead = broker.topics.by_rocketmq_name(dead_letter_topic(broker.rocketmq_groups.name_of(group)))
    count = 0
    if dead is not None:
        retries = retries_of(broker, group_config(broker, broker.rocketmq_groups.name_of(group)))
        for queue in list(dead.queues):
            count += await _redrive_queue(broker, group, dead, queue, retries)
    return count, broker.ledger.barrier()


async def _redrive_queue(broker: "Broker", group: str, dead: Topic, queue: Queue, retries: Topic) -> int:
    until = broker.isolation.stable_end(queue)
    count = 0
    while (offset := position_in(broker, group, queue)) < until:
        found = await _read(broker, dead, queue, offset, until)
        if position_in(broker, group, queue) != offset:
            continue  # Somebody else redrove them while the disk was read.
        again = [each for record in found.buffers for each in _again(broker, dead, queue, record)]
        now_ms = broker.clock.now_ms()
        position = CommittedPosition(queue.key, found.next_offset)
        records: list[Record] = []
        frames = broker.publisher.rocketmq_frames(retries, 0, again, now_ms, records)
        broker.ledger.commit([*records, *broker.positions.records(group, [position], now_ms)], now_ms, frames)
        count += len(frames)
        await asyncio.sleep(0)
    return count


def _again(broker: "Broker", dead: Topic, queue: Queue, record: Buffer) -> list[Message]:
    """Give the message of a dead letter; none if it has to be set aside."""
    try:
        return [_alive(message.decode(record))]
    except Exception as error:  # noqa: BLE001 - set aside, or raised again
        place = f"{dead.rocketmq_name} queue {queue.queue_id}, offset {message.queue_offset_of(record)}"
        broker.poison.set_aside("dead letter", place, error)
        return []


def _alive(dead: Message) -> Message:
    """Give a dead letter as a message that has not failed, and does not expire."""
    kept = lifetimes.without_expiry(properties.parse(properties.repaired(dead.properties)))
    dead.properties = properties.encode(kept).encode()
    again = copy_of(dead, {properties.DELAY: None, REASON: None, EXPIRED_AT: None})
    again.reconsume_times = 0
    return again


async def _read(broker: "Broker", topic: Topic, queue: Queue, offset: int, until: int) -> Records:
    found = broker.reader.rocketmq(queue, topic, offset, SLICE_MESSAGES_MAX, SLICE_BYTES_MAX, until)
    return await awaited(found.start) if isinstance(found, Later) else found
