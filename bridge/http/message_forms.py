"""Messages in JSON, in the bodies of HTTP requests: their fields, their records, and the queue that a message goes to.

Invalid input raises HTTPBadRequest with the name, the value and what was expected.
"""

import base64
import random
import zlib
from binascii import Error as Base64Error
from typing import Final

import msgspec
from aiohttp import web

from duolog.bridge.data import half_frames, unknown_headers
from duolog.bridge.data.delayed.delay_headers import TIMER_NAMES, TIMER_REPLACE
from duolog.bridge.http.requests import Text, text_of
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.tracing import trace_context
from duolog.bridge.tracing.trace_context import TRACEPARENT
from duolog.delay.recurring import AMQ_NAMES
from duolog.protocol.kafka.record_batch import Record

NOT_BY_HEADER: Final = (*TIMER_NAMES, *AMQ_NAMES, TIMER_REPLACE, half_frames.ID)
TAG: Final = "TAGS"  # The property of RocketMQ, and the header of Kafka that becomes it (`protocol/convert/`).


class MessageForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message and its queue. Bytes that are not UTF-8 are sent in base64. A message without a value has null."""

    queue: int | None = None  # None: the queue of the key, or a random queue if there is no key.
    key: Text | None = None
    key_base64: str | None = None
    value: Text | None = None
    value_base64: str | None = None
    headers: dict[str, Text] = {}
    tag: Text | None = None


class TopicMessageForm(MessageForm, forbid_unknown_fields=True, kw_only=True):
    """A message with its topic."""

    topic: str


def record_of(
    topic: Topic, wanted: MessageForm, now_ms: int, *, spread_by: str = "", traceparent: str = ""
) -> tuple[int, Record]:
    """Return queue id and record. Without queue and key, the hash of `spread_by` or else chance selects the queue.

    `traceparent` is the header of the request; the message gets it if it has none of its own.
    """
    for name in NOT_BY_HEADER:
        if name in wanted.headers:
            raise web.HTTPBadRequest(
                text=f"header {name}: not allowed over HTTP; use at_ms or delay_ms (command: --at, --in), "
                "or add a timer or a schedule"
            )
    if topic.settings.unknown_headers != unknown_headers.IGNORE:
        for name in unknown_headers.unknown(wanted.headers):
            raise web.HTTPBadRequest(text=unknown_headers.refusal_of(name))
    if wanted.tag is not None and TAG in wanted.headers:
        raise web.HTTPBadRequest(text=f"expected either tag or the header {TAG}")
    key = _bytes_of("key", wanted.key, wanted.key_base64)
    value = _bytes_of("value", wanted.value, wanted.value_base64)
    headers = [(name, text_of(value).encode()) for name, value in wanted.headers.items()]
    if wanted.tag is not None:
        headers.append((TAG, text_of(wanted.tag).encode()))
    if TRACEPARENT not in wanted.headers and trace_context.is_valid(traceparent):
        headers.append((TRACEPARENT, traceparent.encode()))
    return _queue_id(topic, wanted.queue, key or spread_by.encode()), Record(0, now_ms, key, value, headers)


def _queue_id(topic: Topic, wanted: int | None, key: bytes) -> int:
    if wanted is None:
        # The queue that librdkafka's default partitioner selects.
        return zlib.crc32(key) % topic.queue_count if key else random.randrange(topic.queue_count)
    if not 0 <= wanted < topic.queue_count:
        raise web.HTTPBadRequest(text=f"queue: {topic.name} has {topic.queue_count}, none is {wanted}")
    return wanted


def _bytes_of(name: str, text: Text | None, encoded: str | None) -> bytes | None:
    if text is not None and encoded is not None:
        raise web.HTTPBadRequest(text=f"expected either {name} or {name}_base64")
    if encoded is None:
        return None if text is None else text_of(text).encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except (Base64Error, ValueError) as error:
        raise web.HTTPBadRequest(text=f"{name}_base64: {error}") from error
