"""Rules for the whole suite: what may be left out, what is said about it, and where chance comes from.

A test whose machine lacks something (a JDK, Maven) calls `tests.kit.lacking.skip_or_fail`: it is skipped here, and
fails where `CI=true`. The last lines of a run say what was skipped and why. `DUOLOG_SEED` repeats a run's random
choices.
"""

from __future__ import annotations

import gc
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests.kit.lacking import IN_CI, MAY_BE_SKIPPED_IN_CI

FEW_EXAMPLES = 15
SEED = int(os.environ.get("DUOLOG_SEED") or random.SystemRandom().randrange(1 << 32))

if not IN_CI:  # There hypothesis has a profile of its own that does the same: a busy machine is no failure.
    hypothesis.settings.register_profile(
        "duolog", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("duolog")
# For `make unit`; `make test` tries the default number of examples.
hypothesis.settings.register_profile("few_examples", hypothesis.settings(), max_examples=FEW_EXAMPLES)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("duolog")
    group.addoption("--rewrite", action="store_true", help="write generated parts anew instead of comparing them")
    group.addoption("--peers", action="store_true", help="run wire tests against Apache Kafka and Apache RocketMQ")


def pytest_report_header() -> str:
    return f"seed: {SEED} (DUOLOG_SEED={SEED} repeats it)"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning"
    )  # kafka-python
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(SEED)
    # With Python's threshold of 700 objects, collections take a sixth of the unit tests' processor time.
    gc.set_threshold(10_000)
    os.environ["DUOLOG_SEED"] = str(SEED)  # For the workers of `-n 4`.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A job in a shell's background ignores SIGINT, and so would each child process that a test interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed again below failures, because `-q` hides the header."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(pytest_report_header())


def pytest_collection_finish() -> None:
    """Let the garbage collector not go through what stays until the end of the run."""
    gc.freeze()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Chance for one test, the same for the same seed and test whatever else runs."""
    print(f"DUOLOG_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.nodeid}")


# -- What was left out


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """If the variable CI is true, each skip is a failure."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = _reason(report)
        if not reason.startswith(MAY_BE_SKIPPED_IN_CI):
            report.outcome = "failed"
            report.longrepr = f"nothing may be skipped here, but {item.nodeid} was: {reason}"


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Outermost, so that these are the last lines, below the counts."""
    yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:
        return
    skipped = Counter(_reason(report) for report in terminal.stats.get("skipped", []))
    for reason, count in skipped.most_common():
        terminal.write_line(f"skipped {count}: {reason}", yellow=True)


def _reason(report: Any) -> str:
    where_and_why = report.longrepr
    text = where_and_why[2] if isinstance(where_and_why, tuple) else str(where_and_why)
    return text.removeprefix("Skipped: ")
