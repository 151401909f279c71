"""The thread that exports spans by OTLP over HTTP. The only module that imports OpenTelemetry.

The thread takes spans from the queue every INTERVAL_S, or sooner when there are many, and sends them in batches. A
batch that the collector does not take is dropped and counted; the library repeats a request that may succeed later
until `tracing.timeout_ms` is over. A stop of the broker exports what is left, within STOP_S.
"""

import logging
import random
from collections.abc import Sequence
from threading import Event, Thread
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from duolog.bridge.tracing.span_queue import Span, SpanQueue

BATCH_MAX: Final = 256
INTERVAL_S: Final = 1.0
PAUSE_S: Final = 0.005  # Between two batches, so that encoding does not keep the interpreter lock for long.
STOP_S: Final = 3.0
REPORT_BATCHES: Final = 60  # Failed batches between two log lines.

_SCOPE: Final = InstrumentationScope("duolog")
_KINDS: Final = dict.fromkeys(("publish", "prepare", "fetch"), SpanKind.SERVER)
_NS_IN_MS: Final = 1_000_000

log = logging.getLogger("bridge")


class SpanThread:
    """Exports the spans of a queue until it is stopped."""

    def __init__(self, queue: SpanQueue, exporter: SpanExporter, endpoint: str, attributes: dict[str, str]) -> None:
        self._queue, self._exporter, self._endpoint = queue, exporter, endpoint
        self._resource = Resource.create(attributes)
        self._failed_batches = 0
        self._is_ending = Event()
        self._thread = Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Export what is left, and end the thread; blocks for STOP_S at most."""
        self._is_ending.set()
        self._thread.join(STOP_S)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._is_ending.wait(INTERVAL_S):
            self._export_all()
        self._export_all()

    def _export_all(self) -> None:
        while taken := self._queue.take(BATCH_MAX):
            self._export(taken)
            self._is_ending.wait(PAUSE_S)

    def _export(self, taken: Sequence[Span]) -> None:
        reason = "the collector refused them, or did not answer in time"
        try:
            result = self._exporter.export([readable(span, self._resource) for span in taken])
        except Exception as error:  # noqa: BLE001 - a failure of the collector must not end the thread
            result, reason = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        if result is SpanExportResult.SUCCESS:
            self._queue.exported += len(taken)
            self._failed_batches = 0
            return
        self._queue.failed += len(taken)
        if self._failed_batches % REPORT_BATCHES == 0:
            log.warning("spans not exported endpoint=%s count=%d reason=%r", self._endpoint, len(taken), reason[:300])
        self._failed_batches += 1


def start(queue: SpanQueue, endpoint: str, headers: dict[str, str], timeout_ms: int, name: str) -> SpanThread:
    """Start the export to a collector's URL; `headers` are sent with each request."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # SpanThread reports failures itself.
    exporter = OTLPSpanExporter(endpoint=endpoint, headers=headers, timeout=timeout_ms / 1000)
    return SpanThread(queue, exporter, endpoint, {"service.name": name})


def readable(span: Span, resource: Resource) -> ReadableSpan:
    """Return a span as the SDK exports it, with a new span id."""
    sampled, trace_id = TraceFlags(TraceFlags.SAMPLED), span.parent.trace_id
    return ReadableSpan(
        f"{span.operation} {span.topic}",
        SpanContext(trace_id, random.getrandbits(64) or 1, is_remote=False, trace_flags=sampled),
        SpanContext(trace_id, span.parent.span_id, is_remote=True, trace_flags=sampled),
        resource,
        {"messaging.operation.name": span.operation, "messaging.destination.name": span.topic, **span.attributes},
        kind=_KINDS.get(span.operation, SpanKind.INTERNAL),
        instrumentation_scope=_SCOPE,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_ms * _NS_IN_MS,
        end_time=span.end_ms * _NS_IN_MS,
    )
