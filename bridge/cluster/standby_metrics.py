"""The answer of a standby's `GET /metrics`, in a module of its own because prometheus-client takes long to import."""

from collections.abc import Iterator

from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from duolog.bridge.http.metrics.shared_families import shared_families
from duolog.bridge.monitoring.metrics import Metrics

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _Families:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def exposition(metrics: Metrics, epoch: int) -> bytes:
    """Return the metrics in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families([*shared_families(metrics, is_owner=False, epoch=epoch, behind_bytes=0)]))
    return generate_latest(registry)
