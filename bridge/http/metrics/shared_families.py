"""The metrics of a broker that shares its log: requests to the object store, its role. A standby has them, too."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from duolog.bridge.http.metrics.lines import gauge
from duolog.bridge.monitoring.metrics import Metrics


def shared_families(metrics: Metrics, *, is_owner: bool, epoch: int, behind_bytes: int) -> Iterator[Metric]:
    """Yield the families with their samples. `behind_bytes` is how much of the log the object store lacks."""
    cache = metrics.shared_cache()
    requests = CounterMetricFamily(
        "duolog_object_requests", "Requests to the object store.", labels=("operation", "outcome")
    )
    reads = CounterMetricFamily(
        "duolog_shared_cache_reads",
        "Reads of dropped segments, by whether the range was on the disk (hit) or had to be read back (miss).",
        labels=("outcome",),
    )
    for outcome, count in (("hit", cache.hits), ("miss", cache.misses)):
        reads.add_metric((outcome,), count)
    yield reads
    for names, count in metrics.object_requests.items():
        requests.add_metric(names, count)
    yield requests
    content = CounterMetricFamily(
        "duolog_object_bytes", "Bytes of objects that were written and read.", labels=("operation",)
    )
    for name, count in metrics.object_bytes.items():
        content.add_metric((name,), count)
    yield content
    for name, doc, value in (
        ("duolog_owner", "1 if this broker owns its log, 0 if it is a standby.", int(is_owner)),
        ("duolog_epoch", "Number of the owner's run.", epoch),
        (
            "duolog_shared_behind_bytes",
            "Bytes of the log that the object store lacks, which are lost with the machine.",
            behind_bytes,
        ),
        (
            "duolog_shared_lost_entries",
            "Entries (messages, Kafka batches) that this broker had appended, and that its last start has removed, "
            "because another broker took over before they were uploaded.",
            metrics.shared_lost_entries,
        ),
        ("duolog_shared_disk_bytes", "Bytes of the log on this broker's disk.", cache.disk_bytes),
        (
            "duolog_shared_cached_bytes",
            "Bytes on this broker's disk that were read back from the object store.",
            cache.cached_bytes,
        ),
        (
            "duolog_shared_dropped_segments",
            "Segments that this broker has dropped from its disk since its start.",
            cache.dropped_segments,
        ),
    ):
        family = gauge(name, doc)
        family.add_metric((), value)
        yield family
