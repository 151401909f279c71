"""A hundred takeovers in a row, each with a fault by chance, while the same clients of both protocols and Spark go on.

The brokers and the store are in network namespaces of their own. The faults are those of `takeover_faults.py`. At the
end everything is checked that `test_takeover.py` checks after one takeover, and that Spark's Kafka source has read each
record once. The times from a fault to the next acknowledged send are printed.

The environment may set `TAKEOVERS`, and `SEED`, which chooses the faults.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.kit.eventually import eventually
from tests.wire.clients.jvm import Agents
from tests.wire.clients.shared_pair import Pair, pair_in_network, wait_for_role
from tests.wire.clients.spark import Spark, source
from tests.wire.clients.takeover_faults import FAULTS, FAULTS_OF_NETWORK, Fault
from tests.wire.clients.takeover_loads import Acknowledged, now_ms
from tests.wire.test_takeover import AFTER, GOES_ON_WITHIN_S, ORDERS, SETTINGS, all_clients

if TYPE_CHECKING:
    from pyspark.sql import Row

pytestmark = [
    pytest.mark.soak,
    pytest.mark.alone,
    pytest.mark.usefixtures("duolog_only"),
    pytest.mark.timeout(7200),
]

TAKEOVERS = int(os.environ.get("TAKEOVERS", "100"))
SEED = int(os.environ.get("SEED", "1"))
ALL_FAULTS = FAULTS | FAULTS_OF_NETWORK
QUERY = "orders_of_spark"


class Happened(NamedTuple):
    """A fault after which the standby has taken over."""

    name: str
    at_ms: int


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with pair_in_network(tmp_path, monkeypatch, SETTINGS, is_proxied=True) as running:
        yield running


class SparkQuery:
    """A streaming query with Spark's Kafka source, which lives through all takeovers."""

    def __init__(self, spark: Spark, bootstrap: str, topic: str) -> None:
        self._session = spark.session
        frame = self._session.readStream.format("kafka").options(**source(bootstrap, [topic])).load()
        rows = frame.selectExpr("partition", "offset", "cast(value as string) as body")
        self._query = rows.writeStream.format("memory").queryName(QUERY).outputMode("append").start()

    def check(self, acknowledged: dict[str, list[Acknowledged]]) -> None:
        """Check that the query has read every record that was acknowledged, and none twice."""
        expected = {(each.queue, each.offset, each.body) for places in acknowledged.values() for each in places}
        eventually(
            "all records in Spark",
            lambda: expected - {(row.partition, row.offset, row.body) for row in self._rows()},
            lambda missing: not missing,
            GOES_ON_WITHIN_S,
        )
        assert self._query.isActive, self._query.exception()
        places = [(row.partition, row.offset) for row in self._rows()]
        assert len(places) == len(set(places)), "Spark has read a record twice"
        self._query.stop()

    def _rows(self) -> list[Row]:
        assert self._query.isActive, self._query.exception()
        return self._session.table(QUERY).collect()


def take_over(pair: Pair, name: str, fault: Fault) -> Happened:
    """Let the standby take over, and the old owner follow it."""
    fault.begin(pair)
    happened = Happened(name, now_ms())
    wait_for_role(pair.standby, "owner")
    fault.end(pair)
    pair.wait_until_followed()
    pair.swap()
    return happened


def silences_s(places: list[Acknowledged], faults: list[Happened]) -> list[float]:
    """Return, for each fault, the time until sends were acknowledged again: the end of the longest silence after it."""
    times = sorted(each.at_ms for each in places)
    ends = [*(each.at_ms for each in faults[1:]), times[-1] + 1]
    found = []
    for fault, end_ms in zip(faults, ends, strict=True):
        later = [each for each in times if each > fault.at_ms]
        # A client may not have gone on before the next fault.
        seen = [fault.at_ms, *([each for each in later if each < end_ms] or later[:1])]
        longest = max(range(1, len(seen)), key=lambda at: seen[at] - seen[at - 1])
        found.append((seen[longest] - fault.at_ms) / 1000)
    return found


def test_all_clients_go_on_over_a_hundred_takeovers(pair: Pair, agents: Agents, spark: Spark, tmp_path: Path) -> None:
    chance, happened = Random(SEED), list[Happened]()
    with all_clients(pair, agents, tmp_path) as everyone:
        query = SparkQuery(spark, pair.bootstrap, ORDERS)
        everyone.wait_for_records(AFTER)
        for number in range(TAKEOVERS):
            everyone.send_timers(30)
            everyone.wait_for_records(AFTER, of_kafka_alone=True)
            everyone.collect_and_restart()
            name = chance.choice([*ALL_FAULTS])
            print(f"takeover {number + 1} of seed {SEED}: {name}", flush=True)
            happened.append(take_over(pair, name, ALL_FAULTS[name]))
            everyone.commit_transaction()
        everyone.wait_for_records(AFTER)
        before, fault_ms = everyone.commit(), now_ms()
        acknowledged = everyone.stop()
        everyone.check(acknowledged, before, fault_ms, int(GOES_ON_WITHIN_S * 1000))
        query.check(acknowledged)
        everyone.stop_consumers()
    check_times(acknowledged, happened)


def check_times(acknowledged: dict[str, list[Acknowledged]], happened: list[Happened]) -> None:
    """Print how long each writer waited after each fault, and compare that with what the fault allows."""
    waited_s = {writer: silences_s(places, happened) for writer, places in acknowledged.items()}
    for writer, times in waited_s.items():
        print(f"{writer}: median {median(times):.1f} s, longest {max(times):.1f} s")
    for number, (name, _) in enumerate(happened):
        print(f"{name}: { {writer: round(times[number], 1) for writer, times in waited_s.items()} }")
    for writer, times in waited_s.items():
        late = [
            (name, waited)
            for (name, _), waited in zip(happened, times, strict=True)
            if waited > ALL_FAULTS[name].within_s
        ]
        assert not late, f"{writer} waited longer than a takeover takes: {late}"
