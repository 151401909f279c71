"""Starts the export of spans, if the packages for it are installed."""

import logging
from typing import TYPE_CHECKING

from duolog.bridge.config import ConfigError, TracingOptions, collector_headers
from duolog.bridge.tracing.span_queue import SpanQueue

if TYPE_CHECKING:
    from duolog.bridge.tracing.otlp import SpanThread

log = logging.getLogger("bridge")


def start_export(spans: SpanQueue, options: TracingOptions) -> "SpanThread":
    """Start the thread that exports spans. Raises ConfigError if the packages for it are not installed."""
    try:
        from duolog.bridge.tracing import otlp  # Imported here, because it is slow, and an extra.
    except ImportError as error:
        raise ConfigError(
            f"tracing.endpoint: the package {error.name} is not installed; `pip install 'duolog[tracing]'` has it"
        ) from error
    headers = collector_headers(options.headers)
    log.info("spans are exported endpoint=%s ratio=%s", options.endpoint, options.ratio)
    return otlp.start(spans, options.endpoint, headers, options.timeout_ms, options.service_name)
