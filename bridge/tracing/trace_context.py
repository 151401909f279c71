"""The trace context of a message: the value of `traceparent` in its headers or properties.

    version "-" trace id, 32 hexadecimal digits "-" parent's span id, 16 digits "-" flags, 2 digits; bit 0: sampled

A message without a valid `traceparent`, or with one that is not sampled, has no context.
Source: https://www.w3.org/TR/trace-context/#traceparent-header
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_reader
from duolog.protocol.kafka.record_batch import read_header
from duolog.protocol.rocketmq.messages import message, properties
from duolog.store.entry import Buffer

TRACEPARENT: Final = "traceparent"
INFLATED_BYTES_MAX: Final = 4 << 20  # A compressed batch that inflates to more is not searched.
RECORDS_MAX: Final = 1024  # The records of one batch that are searched, from the first one on.
BORN_TIMESTAMP: Final = "__BORN_TIMESTAMP"  # The header that a delayed Kafka record gets.
ENQUEUED: Final = "TIMER_ENQUEUE_MS"  # The property that a delayed RocketMQ message gets.

_MARK: Final = TRACEPARENT.encode()
_SAMPLED: Final = 1
_TEXT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class TraceContext(NamedTuple):
    """The trace of a message, and the producer's span in it."""

    trace_id: int
    span_id: int


class TracedRecord(NamedTuple):
    """A traced record of a frame."""

    number: int  # The record's offset is the frame's base offset + `number`.
    context: TraceContext
    sent_ms: int  # When a delayed message was sent; 0 if the frame does not say.


def parse(text: str) -> TraceContext | None:
    """Parse a `traceparent`; None if it is invalid or not sampled."""
    found = _valid(text)
    if found is None or not int(found[3], 16) & _SAMPLED:
        return None
    return TraceContext(int(found[1], 16), int(found[2], 16))


def is_valid(text: str) -> bool:
    """Return whether this is a `traceparent`, sampled or not."""
    return _valid(text) is not None


def _valid(text: str) -> re.Match[str] | None:
    found = _TEXT.fullmatch(text)
    return found if found is not None and int(found[1], 16) and int(found[2], 16) else None


def may_be_traced(frame: Buffer) -> bool:
    """Return whether the name of the header is somewhere in these bytes."""
    return bytes(frame).find(_MARK) >= 0


def traced_in_batch(batch: Buffer) -> Iterator[TracedRecord]:
    """Yield the traced records of a Kafka batch. A batch that cannot be decoded has none."""
    try:
        if not read_header(batch).codec and not may_be_traced(batch):
            return
        opened = record_reader.open_batch(batch, INFLATED_BYTES_MAX)
        if not may_be_traced(opened.body):
            return
        records, _ = record_reader.read_records(opened, record_reader.FIRST, RECORDS_MAX)
    except ProtocolError:
        return
    first_offset = records[0].offset if records else 0
    for record in records:
        headers = dict(record.headers)
        context = parse((headers.get(TRACEPARENT) or b"").decode("latin-1"))
        if context is not None:
            sent = (headers.get(BORN_TIMESTAMP) or b"0").decode("latin-1")
            yield TracedRecord(record.offset - first_offset, context, _whole(sent))


def traced_in_message(record: Buffer) -> Iterator[TracedRecord]:
    """Yield the trace context of a RocketMQ record, if it is traced."""
    if not may_be_traced(record):
        return
    try:
        found = properties.parse(message.properties_of(record))
    except ProtocolError:
        return
    context = parse(found.get(TRACEPARENT, ""))
    if context is not None:
        sent_ms = _whole(found.get(ENQUEUED, "")) or message.born_ms_of(record)
        yield TracedRecord(0, context, sent_ms)


def _whole(text: str) -> int:
    """Return a time in ms that a client may have written; 0 if it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else 0
