"""The answer of `GET /metrics` in the text format of Prometheus, made in slices.

A family whose series are few is rendered by prometheus-client. The families of topics and groups may have tens of
thousands of series, which prometheus-client renders ten times slower; their modules write the lines themselves, and
prometheus-client writes only HELP and TYPE.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.metrics.broker_families import broker_families
from duolog.bridge.http.metrics.group_families import group_families
from duolog.bridge.http.metrics.lines import FamilyLines, Scrape
from duolog.bridge.http.metrics.rocketmq_families import client_families, rocketmq_families
from duolog.bridge.http.metrics.topic_families import topic_families

CONTENT_TYPE = CONTENT_TYPE_LATEST


def new_scrape(context: HttpContext) -> Scrape:
    """Return a scrape with the usual limits, which may take a quarter of `http.held_bytes_max` at most."""
    usual = Scrape()
    return Scrape(group_bytes_max=min(usual.group_bytes_max, context.options.http.held_bytes_max // 8))


def parts(context: HttpContext, scrape: Scrape) -> Iterator[bytes | None]:
    """Yield the parts of the answer. At each None, and after each part, the event loop may run."""
    for family in fixed_families(context):
        yield _rendered(family)
    for found in series_families(context, scrape):
        if found is None:
            yield None
        else:
            yield _rendered(found.family)
            yield from found.lines
    yield _rendered(scrape.family())


def fixed_families(context: HttpContext) -> Iterator[Metric]:
    """Yield the families whose number of series is fixed."""
    yield from broker_families(context)
    yield from rocketmq_families(context)


def series_families(context: HttpContext, scrape: Scrape) -> Iterator[FamilyLines | None]:
    """Yield the families whose series grow with topics, groups and clients, after None between slices."""
    yield from topic_families(context, scrape)
    yield from client_families(context, scrape)
    yield from group_families(context, scrape)


def families(context: HttpContext) -> Iterator[Metric]:
    """Yield all metrics, those of topics, groups and clients without their series."""
    yield from fixed_families(context)
    scrape = Scrape()
    yield from (found.family for found in series_families(context, scrape) if found is not None)
    yield scrape.family()


class _OneFamily(CollectorRegistry):
    """A registry with one family, which `generate_latest` renders."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _rendered(family: Metric) -> bytes:
    return generate_latest(_OneFamily(family))
