"""Lines of metrics whose series grow with topics and groups, and the limits of their number."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

LINES_IN_PART: Final = 256  # At half a microsecond each.


class FamilyLines(NamedTuple):
    """A family without samples, and the parts of its lines."""

    family: Metric
    lines: Iterable[bytes]


@dataclass(slots=True)
class Scrape:
    """One scrape: its limits, and the number of topics and groups that they leave out."""

    topics_max: int = 5_000  # Topics with series: those that were created first.
    queues_max: int = 20_000  # Queues of these topics.
    groups_max: int = 1_000  # Groups with series.
    # Bytes of the lines of groups, which are made together. A line has about 100 bytes, so there are some 40,000.
    group_bytes_max: int = 4 << 20
    omitted_topics: int = 0
    omitted_groups: int = 0

    @property
    def memory_bytes_max(self) -> int:
        """The memory that the scrape may take: a line of 100 characters takes about 160 bytes."""
        return 2 * self.group_bytes_max

    def family(self) -> Metric:
        """Return the gauge of what is left out; complete once all lines were made."""
        doc = "Topics and groups that this scrape leaves out, wholly or in part, because it reached a limit."
        family = GaugeMetricFamily("duolog_scrape_omitted", doc, labels=("kind",))
        family.add_metric(("topics",), self.omitted_topics)
        family.add_metric(("groups",), self.omitted_groups)
        return family


def in_parts(lines: Iterable[str]) -> Iterator[bytes]:
    """Yield lines together, LINES_IN_PART at a time."""
    left = iter(lines)
    while some := list(islice(left, LINES_IN_PART)):
        yield "".join(some).encode()


def counter(name: str, doc: str, *labels: str) -> CounterMetricFamily:
    """Return a counter without samples; `name` ends in `_total`."""
    return CounterMetricFamily(name, doc, labels=labels)


def gauge(name: str, doc: str, *labels: str) -> GaugeMetricFamily:
    """Return a gauge without samples."""
    return GaugeMetricFamily(name, doc, labels=labels)


def escaped(value: str) -> str:
    """Return a label value as the text format has it between quotes; a lone surrogate becomes a question mark."""
    text = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text.encode(errors="replace").decode()


def labelled(**labels: str) -> str:
    """Return labels as they stand between braces."""
    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
