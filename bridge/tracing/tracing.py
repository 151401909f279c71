"""The class Tracing: makes the spans of traced messages from what is appended and what is read.

`TracedLog` passes each appended unit to `appended`, and the handlers of reads pass each answer to `read`. Without
tracing neither exists, so that it costs nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from duolog.bridge.records import frame_formats
from duolog.bridge.tracing.span_queue import Span, SpanQueue
from duolog.bridge.tracing.trace_context import TracedRecord, traced_in_batch, traced_in_message
from duolog.bridge.tracing.traced_messages import TracedMessage, TracedMessages
from duolog.delay import entry_extra
from duolog.delay.rows import TOPIC_SHIFT
from duolog.protocol.rocketmq.names import HALF_TOPIC
from duolog.store.entry import Appended, Buffer, Promise
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue
from duolog.store.unit import Frame, FrameRun, Part

SPANS_OF_UNIT_MAX: Final = 4096  # The traced records of one append; further ones are not traced.
SYSTEMS: Final = {frame_formats.KAFKA: "kafka", frame_formats.ROCKETMQ: "rocketmq"}
_LOW_64: Final = (1 << 64) - 1

When = Callable[[Promise, Callable[[StoreError | None], None]], None]


class Tracing:
    """Makes spans. `ratio` is the share of traces that are kept; it decides by the trace id, as OpenTelemetry does.

    `name_of` returns the name of the topic with a number, or None.
    """

    def __init__(
        self,
        spans: SpanQueue,
        messages: TracedMessages,
        ratio: float,
        now_ms: Callable[[], int],
        name_of: Callable[[int], str | None],
    ) -> None:
        self.spans = spans
        self._messages, self._now_ms, self._name_of = messages, now_ms, name_of
        self._bound = round(ratio * (1 << 64))  # TraceIdRatioBased of OpenTelemetry's SDK.
        self._is_delivering = False
        self._when: When = _never

    def attach(self, when: When) -> None:
        """Set the function that waits for the promises of the log, once the log is open."""
        self._when = when

    def delivering(self, run: Callable[[int, int], object]) -> Callable[[int, int], None]:
        """Return a duty that calls `run`, whose appends are deliveries."""

        def deliver(now_ms: int, mono_ms: int) -> None:
            self._is_delivering = True
            try:
                run(now_ms, mono_ms)
            finally:
                self._is_delivering = False

        return deliver

    # -- Appends

    def appended(self, parts: Sequence[Part], appended: Appended, now_ms: int) -> None:
        """Make the spans of a unit that was appended at `now_ms`."""
        found: list[Span] = []
        for part, slot in zip(parts, appended.slots, strict=False):
            if isinstance(part, Frame | FrameRun):
                for record in _traced(part):
                    if len(found) >= SPANS_OF_UNIT_MAX:
                        break
                    if record.context.trace_id & _LOW_64 < self._bound:
                        found += self._spans_of(part, slot.base_offset, record, now_ms)
        if found:
            self._when(appended.promise, lambda error: self._end(found, error))

    def _spans_of(self, part: Frame | FrameRun, base_offset: int, record: TracedRecord, now_ms: int) -> list[Span]:
        """Return the spans of one record. The last one ends when the promise of its unit is kept."""
        queue, offset = part.queue, base_offset + record.number
        is_delivery = self._is_delivering
        extra = part.extra if isinstance(part, Frame) else b""
        is_pending = entry_extra.is_pending(extra)
        attributes: dict[str, str | int] = {"messaging.system": SYSTEMS[part.form]}
        if is_pending:
            attributes["duolog.due_ms"] = entry_extra.due_ms_of(extra)
        else:
            attributes["messaging.destination.partition.id"] = str(queue.queue_id)
            attributes["messaging.message.offset"] = offset
            self._messages.add(queue.key, TracedMessage(offset, record.context, now_ms))
        number = entry_extra.destination_of(extra) >> TOPIC_SHIFT if is_pending else queue.topic
        topic = self._name_of(number) or str(number)
        spans = []
        if is_delivery and record.sent_ms:
            spans.append(Span("delay", topic, record.context, min(record.sent_ms, now_ms), now_ms, attributes))
        operation = "deliver" if is_delivery else "prepare" if topic == HALF_TOPIC else "publish"
        spans.append(Span(operation, topic, record.context, now_ms, now_ms, attributes))
        return spans

    def _end(self, spans: Iterable[Span], error: StoreError | None) -> None:
        now_ms, reason = self._now_ms(), "" if error is None else str(error)
        for span in spans:
            if span.operation != "delay":
                span = span._replace(end_ms=max(now_ms, span.start_ms), error=reason)
            self.spans.add(span)

    # -- Reads

    def read(
        self,
        queue: Queue,
        first: int,
        end: int,
        begun_ms: int,
        attributes: dict[str, str | int],
        offsets: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        """Make the spans of an answer with messages of a queue with offsets in [first, end).

        `begun_ms` is when the request was received. `offsets` returns those of the messages in the answer; None: all.
        """
        messages = self._messages.between(queue.key, first, end)
        if not messages:
            return
        now_ms = self._now_ms()
        topic = self._name_of(queue.topic) or str(queue.topic)
        given = None if offsets is None else set(offsets())
        for offset, context, visible_ms in messages:
            if given is None or offset in given:
                own = attributes | {
                    "messaging.destination.partition.id": str(queue.queue_id),
                    "messaging.message.offset": offset,
                }
                start_ms = min(max(begun_ms, visible_ms), now_ms)
                self.spans.add(Span("fetch", topic, context, start_ms, now_ms, own))


def _traced(part: Frame | FrameRun) -> Iterator[TracedRecord]:
    """Yield the traced records of a frame, or of a run of frames with one record each."""
    find = traced_in_batch if part.form == frame_formats.KAFKA else traced_in_message
    if isinstance(part, Frame):
        yield from find(_joined(part.body))
        return
    for number, frame in enumerate(part.frames):
        yield from (record._replace(number=number) for record in find(frame))


def _joined(body: Buffer | Sequence[Buffer]) -> Buffer:
    return body if isinstance(body, bytes | bytearray | memoryview) else b"".join(body)


def _never(promise: Promise, done: Callable[[StoreError | None], None]) -> None:
    raise AssertionError("the log is not open")
