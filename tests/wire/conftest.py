"""The fixtures and the order of the wire tests.

A broker serves one module. A Spark session, and a JVM for each classpath, serve all tests of one pytest worker.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.broker import Broker
from tests.kit.lacking import skip_or_fail
from tests.kit.peers import Peers
from tests.wire.clients.jvm import Agents
from tests.wire.clients.spark import Spark

# The files that take longest, in the order in which they start: four workers that take whole files (`--dist loadfile
# --no-loadscope-reorder`) then end at about the same time. All other files follow.
LONGEST_FIRST = (
    "test_pipeline.py", "test_guides.py", "test_consumers.py", "test_rocketmq_consuming.py",
    "test_official_examples.py", "test_matrix.py", "test_grpc_proxy.py", "test_backup.py", "test_standby_routes.py",
    "test_shared_log_source.py", "test_delay_jobs.py", "test_guide_streams.py", "test_delay.py", "test_command.py",
    "test_log_source.py", "test_move.py", "test_kafka_transactions.py", "test_messages.py", "test_shared_cache.py",
    "test_bad_input.py", "test_half.py", "test_object_stores.py", "test_topics_found.py", "test_fleet.py",
    "test_kafka_tools.py", "test_tls_under_load.py", "test_shared.py", "test_spark.py",
)  # fmt: skip
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; each file keeps the order of its tests."""
    start_of = {HERE / name: number for number, name in enumerate(LONGEST_FIRST)}
    missing = [path.name for path in start_of if not path.exists()]
    assert not missing, f"LONGEST_FIRST names files that are not there: {missing}"
    items.sort(key=lambda item: start_of.get(item.path, len(start_of)) if item.path.parent == HERE else -1)


@pytest.fixture(scope="session")
def agents() -> Iterator[Agents]:
    running = Agents()
    yield running
    running.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[Spark]:
    session = Spark()
    yield session
    session.close()


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker | Peers]:
    """The module's broker. A module may set BROKER_SETTINGS; with --peers the Apache brokers stand in."""
    settings = getattr(request.module, "BROKER_SETTINGS", {})
    with tempfile.TemporaryDirectory(prefix="duolog-wire-", ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        running = Peers(data) if request.config.getoption("--peers") else Broker(data, settings)
        running.start()
        yield running
        running.delete()


@pytest.fixture
def both_protocols(request: pytest.FixtureRequest) -> None:
    """For tests that write with one protocol and read with the other."""
    if request.config.getoption("--peers"):
        skip_or_fail("the Apache brokers speak one protocol each")


@pytest.fixture(scope="session")
def duolog_only(request: pytest.FixtureRequest) -> None:
    """For tests of Duolog's own commands, metrics and log."""
    if request.config.getoption("--peers"):
        skip_or_fail("the Apache brokers have no such command, metric or log line")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure shows the end of the broker's log, and says if the broker has ended."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    running = getattr(item, "funcargs", {}).get("broker")
    if report.failed and running is not None:
        report.sections.append(("broker", running.log_tail()))
