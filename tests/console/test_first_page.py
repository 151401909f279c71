"""The first page of the console after a start, for which the broker imports Jinja2 and compiles templates.

The time is the processor time of the broker's process, which other processes do not lengthen as they do the time of a
clock: an idle machine takes as long for the page.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.console.conftest import processor_s
from tests.console.contents import ask
from tests.kit.broker import Broker

TOPICS = 1000
FIRST_PAGE_S = 0.3


@pytest.fixture
def stopped(tmp_path: Path) -> Broker:
    """A broker that was stopped, with many topics."""
    found = Broker(tmp_path / "data", {"store.flush": "async"})
    with found:
        for number in range(TOPICS):
            ask(found, "POST", "/api/topics", {"name": f"many-{number:04}"})
    return found


@pytest.mark.parametrize("path", ["/", "/console/topics", "/console/delayed"])
def test_the_first_page_takes_less_than_300_ms(stopped: Broker, path: str) -> None:
    times = []
    for _ in range(3):
        with stopped as broker:
            begun_s = processor_s(broker)
            with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=30) as answer:
                assert b"<h1>" in answer.read()
            times.append(processor_s(broker) - begun_s)
    assert min(times) < FIRST_PAGE_S, times
