"""Tracing without a collector: which messages have a trace context, which spans a unit and a read make, and limits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.bridge.config import Options, TracingOptions, collector_headers
from duolog.bridge.config.log import check_endpoint
from duolog.bridge.config.section import ConfigError
from duolog.bridge.core import Core
from duolog.bridge.tracing.span_queue import Span, SpanQueue
from duolog.bridge.tracing.trace_context import TraceContext, parse, traced_in_batch, traced_in_message
from duolog.bridge.tracing.traced_messages import TracedMessage, TracedMessages
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.compression import Codec
from tests.kit.core import ManualCore

TRACE, PARENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
TEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CONTEXT = TraceContext(TRACE, PARENT)


def traced_core(**tracing: Any) -> ManualCore:
    options = TracingOptions(**{"endpoint": "http://127.0.0.1:4318/v1/traces", **tracing})
    return ManualCore(Options(tracing=options))


def batch(*texts: str | None, codec: Codec = Codec.NONE) -> bytes:
    builder = BatchBuilder()
    for number, text in enumerate(texts):
        builder.append(number, 1_000, None, b"x", [] if text is None else [("traceparent", text.encode())])
    return bytes(builder.finish(0, 0, codec=codec))


def spans_of(core: Core) -> list[Span]:
    assert core.tracing is not None
    return core.tracing.spans.take(100)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TEXT, CONTEXT),
        (TEXT.replace("-01", "-03"), CONTEXT),
        (TEXT.replace("00-4", "cc-4") + "-what-the-future-will-bring", CONTEXT),
        (TEXT.replace("-01", "-00"), None),
        (TEXT.upper(), None),
        (TEXT.replace("00-4", "ff-4"), None),
        (f"00-{0:032x}-{PARENT:016x}-01", None),
        (f"00-{TRACE:032x}-{0:016x}-01", None),
        (TEXT[:-1], None),
        ("", None),
    ],
)
def test_a_traceparent_is_parsed_as_the_standard_says(text: str, found: TraceContext | None) -> None:
    assert parse(text) == found


@given(st.binary(max_size=200))
def test_garbage_has_no_trace_context_and_raises_nothing(data: bytes) -> None:
    assert not [*traced_in_batch(data + b"traceparent"), *traced_in_message(data + b"traceparent")]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_records_of_a_batch_are_found_by_their_numbers(codec: Codec) -> None:
    assert [record[:2] for record in traced_in_batch(batch(None, TEXT, None, TEXT, codec=codec))] == [
        (1, CONTEXT), (3, CONTEXT)
    ]  # fmt: skip


def test_a_publish_ends_when_its_promise_is_kept() -> None:
    core = traced_core()
    topic = core.topic("orders", 1)
    core.is_stalled = True
    core.publisher.publish_batch(topic, 0, batch(TEXT), core.clock.now_ms())
    assert not spans_of(core)
    core.clock.pass_ms(7)
    core.is_stalled = False
    core.settle()
    (span,) = spans_of(core)
    assert (span.operation, span.topic, span.parent, span.error) == ("publish", "orders", CONTEXT, "")
    assert span.end_ms - span.start_ms == 7


def test_a_read_makes_spans_of_what_it_returns_from_the_time_at_which_that_was_there() -> None:
    core = traced_core()
    topic = core.topic("orders", 1)
    core.publisher.publish_batch(topic, 0, batch(TEXT, None, TEXT), core.clock.now_ms())
    core.settle()
    published_ms = core.clock.now_ms()
    spans_of(core)
    core.clock.pass_ms(50)
    assert core.tracing is not None
    core.tracing.read(topic.queues[0], 1, 3, published_ms - 1_000, {})
    core.tracing.read(topic.queues[0], 0, 3, published_ms + 20, {}, offsets=lambda: [0, 1])
    first, second = spans_of(core)
    assert (first.operation, first.attributes["messaging.message.offset"]) == ("fetch", 2)
    assert (first.start_ms, first.end_ms) == (published_ms, published_ms + 50)
    assert (second.start_ms, second.attributes["messaging.message.offset"]) == (published_ms + 20, 0)


@pytest.mark.parametrize(("ratio", "count"), [(0.0, 0), (1.0, 1), (0.63, 0), (0.64, 1)])
def test_the_ratio_keeps_whole_traces_by_their_ids(ratio: float, count: int) -> None:
    core = traced_core(ratio=ratio)
    core.publisher.publish_batch(core.topic("orders", 1), 0, batch(TEXT), core.clock.now_ms())
    core.settle()
    assert len(spans_of(core)) == count


def test_without_an_endpoint_nothing_is_traced() -> None:
    assert ManualCore().tracing is None


def test_spans_beyond_the_queue_are_dropped_and_counted() -> None:
    queue = SpanQueue(queue_max := 2)
    span = Span("publish", "orders", CONTEXT, 0, 0, {})
    for _ in range(queue_max + 3):
        queue.add(span)
    assert (len(queue), queue.dropped) == (2, 3)
    assert queue.take(5) == [span, span]


def test_the_oldest_traced_messages_are_forgotten_first() -> None:
    messages = TracedMessages(remembered_max := 3)
    for offset in range(remembered_max + 2):
        messages.add(7, TracedMessage(offset, CONTEXT, 0))
    assert [each.offset for each in messages.between(7, 0, 99)] == [2, 3, 4]
    messages.add(8, TracedMessage(0, CONTEXT, 0))
    assert len(messages) == 3
    assert [each.offset for each in messages.between(7, 4, 99)] == [4]
    assert not messages.between(9, 0, 99)


def test_settings_that_cannot_be_used_are_refused_without_a_secret_in_the_text() -> None:
    assert collector_headers(" Authorization = Bearer a=b ,x=1") == {"Authorization": "Bearer a=b", "x": "1"}
    for wrong in ("secret", "a b=secret", "x=1,=secret", "x=secret\n"):
        with pytest.raises(ConfigError) as error:
            collector_headers(wrong + ",y")
        assert "secret" not in str(error.value)
    check_endpoint("")
    for wrong in ("127.0.0.1:4318", "ftp://host/", "http://", "http://me:secret@host/"):
        with pytest.raises(ConfigError, match=r"tracing\.endpoint"):
            check_endpoint(wrong)
