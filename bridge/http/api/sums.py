"""GET /api/topics/{name}/sums: checksums of ranges of a queue, with which a copy of the queue is compared.

    ?queue=0&start=0&end=5000&step=100    ->  {"queue", "start", "next", "absent": [[start, end]], "sums": [...]}

One answer reads at most READ_BYTES_MAX; `next` is the start of the next request. The status is 410 for ranges below the
log start offset, because their records were removed. Only committed records count.
`bridge/data/range_checksums.py` computes the checksums.
"""

import asyncio
from typing import Any, Final

from aiohttp import web

from duolog.bridge.data.range_checksums import RangeChecksums, add_batch
from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import is_hidden
from duolog.bridge.http.api.messages import Decompression
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import number
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.record_batch import read_header
from duolog.store.entry import Buffer
from duolog.store.errors import OffsetOutOfRange
from duolog.store.index.queue import Queue

READ_BYTES: Final = 256 << 10  # The size of one read.
READ_BYTES_MAX: Final = 16 << 20  # The size of all reads for one answer.
STEP: Final = 1000
NUMBER_MAX: Final = 10**18 - 1  # The greatest value of a query parameter.


async def sums(
    context: HttpContext, decompression: Decompression, topic: Topic, request: web.Request
) -> dict[str, Any]:
    """Answer a request. Raises HTTPException and StoreError."""
    queue = _queue(topic, number(request, "queue", 0, NUMBER_MAX))
    start = number(request, "start", queue.start_offset, NUMBER_MAX)
    stable_end = context.messages.isolation.stable_end(queue)
    end = min(number(request, "end", stable_end, NUMBER_MAX), stable_end)
    step = number(request, "step", STEP, NUMBER_MAX, lowest=1)
    found = RangeChecksums(start, max(start, end), step)
    try:
        await _add_up(context, decompression, topic, queue, found)
    except OffsetOutOfRange as error:
        raise web.HTTPGone(text=str(error)) from error
    except ProtocolError as error:
        raise web.HTTPConflict(text=f"{topic.name}/{queue.queue_id} has no readable records there: {error}") from error
    return {"queue": queue.queue_id} | found.answer()


async def _add_up(
    context: HttpContext, decompression: Decompression, topic: Topic, queue: Queue, found: RangeChecksums
) -> None:
    room = READ_BYTES_MAX
    # The state of now, like the end offset: all transactions below it are decided.
    isolation = context.messages.isolation.get(queue.key)
    while not found.is_done and room > 0:
        batches = await _read(context, topic, queue, found.at)
        if not batches:
            return
        for batch in batches:
            room -= len(batch)
            header = read_header(batch)
            if header.last_offset < queue.start_offset:  # Retention has removed the batch in the meantime.
                raise OffsetOutOfRange(str(queue), header.base_offset, queue.start_offset, queue.visible_end)
            if is_hidden(batch, header.base_offset, isolation):
                found.skip_to(header.last_offset + 1)
                continue
            # A batch that cannot be decompressed is an error, not a gap: Kafka consumers cannot read its records
            # either.
            async with decompression.opened(batch) as opened:
                for _ in add_batch(found, opened):
                    await asyncio.sleep(0)


async def _read(context: HttpContext, topic: Topic, queue: Queue, offset: int) -> list[Buffer]:
    found = context.messages.reader.read_for_kafka(queue, topic, offset, READ_BYTES, queue.visible_end, "http")
    return await wait_for_callback(found.start) if isinstance(found, Later) else found


def _queue(topic: Topic, queue_id: int) -> Queue:
    if not 0 <= queue_id < topic.queue_count:
        raise web.HTTPNotFound(text=f"{topic.name} has {topic.queue_count} queues; there is no queue {queue_id}")
    return topic.queues[queue_id]
