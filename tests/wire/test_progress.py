"""`duolog backup`, `restore` and `log verify` draw a progress bar on a terminal, and write nothing of it elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kit.broker import Broker
from tests.kit.command import on_terminal, run_duolog

SEGMENT_BYTES = 1 << 20
SEGMENTS = 6


@pytest.fixture(scope="module")
def broker(duolog_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose log has more than SEGMENTS segments."""
    settings = {"store.segment_bytes": SEGMENT_BYTES}
    with Broker(tmp_path_factory.mktemp("progress") / "data", settings) as running:
        producer = Producer({"bootstrap.servers": running.kafka, "batch.num.messages": 10})
        for _ in range(SEGMENTS * SEGMENT_BYTES // 10_000 + 1):
            producer.produce("orders", bytes(10_000))
        assert producer.flush(30) == 0
        yield running


def test_progress_is_drawn_on_a_terminal_and_nowhere_else(broker: Broker, tmp_path: Path) -> None:
    copy, restored = str(tmp_path / "copy"), str(tmp_path / "restored")
    for label, command in (
        ("copying", ("backup", copy, "--http", broker.http)),
        ("restoring", ("restore", copy, "--data", restored)),
        ("verifying", ("log", "verify", "--data", restored)),
    ):
        status, out, terminal = on_terminal(*command, "--json")
        assert status == 0, terminal
        assert json.loads(out)  # The bar is not on standard output.
        drawn = [int(percent) for percent in re.findall(rf"{label} .*?(\d+)%", terminal)]
        assert drawn == sorted(drawn)
        assert (drawn[0], drawn[-1]) == (0, 100), terminal
        assert len(set(drawn)) > SEGMENTS, "the bar moves during the work"
    plain = run_duolog("log", "verify", "--data", restored)
    assert (plain.returncode, plain.stderr) == (0, "")
