"""Each alert of `duolog dashboard alerts` fires for the values that it is for, and not for others.

`promtool test rules` evaluates the rules over the series of a table.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from duolog.bridge.cli.dashboards import ALERTS
from tests.kit.command import duolog
from tests.wire.test_metrics import program

AT_MINUTES = 30


class Case(NamedTuple):
    """An alert with series in promtool's notation, one value for each minute, and whether it fires at AT_MINUTES."""

    alert: str
    fires: bool
    series: dict[str, str]


def lateness(metric: str, up_to: str, within: str, all_of_them: str) -> dict[str, str]:
    """Return a histogram: the counts up to a bound, and of all observations, which are up to ten seconds."""
    counts = {up_to: within, "10": all_of_them, "+Inf": all_of_them}
    return {f'{metric}_bucket{{le="{le}"}}': values for le, values in counts.items()}


def errors(wire: str, error: str, counts: str) -> dict[str, str]:
    return {f'duolog_errors_total{{wire="{wire}",error="{error}"}}': counts}


LAG = 'duolog_group_lag_messages{group="billing",topic="orders"}'
TURNS = 'duolog_long_loop_turns_total{kind="kafka fetch"}'
GIVEN_UP = 'duolog_check_backs_total{result="given_up"}'
ASKED = 'duolog_check_backs_total{result="requests"}'
FAULTS = 'duolog_faults_total{kind="kafka fetch"}'
POISONED = 'duolog_poisoned_records_total{kind="topic"}'
CASES = [
    Case("DuologNotReady", True, {"duolog_ready": "1x20 0x10"}),
    Case("DuologNotReady", False, {"duolog_ready": "0x28 1x2"}),
    Case("DuologDataDamaged", True, {"duolog_damaged_places": "1x30"}),
    Case("DuologDataDamaged", False, {"duolog_damaged_places": "0x30"}),
    Case("DuologGroupLags", True, {LAG: "100000+1000x30"}),
    Case("DuologGroupLags", False, {LAG: "200000x30"}),  # It is large, and does not grow.
    Case("DuologGroupLags", False, {LAG: "200000-1000x30"}),
    Case("DuologGroupLags", False, {LAG: "0+1000x30"}),  # It grows, and is small.
    Case("DuologTimersLate", True, lateness("duolog_timer_lateness_seconds", "1", "0+50x30", "0+60x30")),
    Case("DuologTimersLate", False, lateness("duolog_timer_lateness_seconds", "1", "0+60x30", "0+60x30")),
    Case("DuologTimersLate", False, lateness("duolog_timer_lateness_seconds", "1", "5x30", "60x30")),  # Long ago.
    Case("DuologTimersOverdue", True, {"duolog_timer_overdue_seconds": "2x30"}),
    Case("DuologTimersOverdue", False, {"duolog_timer_overdue_seconds": "0.5x30"}),
    Case("DuologTimersOverdue", False, {"duolog_timer_overdue_seconds": "0x29 2x1"}),  # For less than a minute.
    Case("DuologDiskNearlyFull", True, {"duolog_disk_used_bytes": "90x30", "duolog_disk_total_bytes": "100x30"}),
    Case("DuologDiskNearlyFull", False, {"duolog_disk_used_bytes": "80x30", "duolog_disk_total_bytes": "100x30"}),
    Case("DuologFsyncSlow", True, lateness("duolog_fsync_seconds", "0.2", "0+50x30", "0+60x30")),
    Case("DuologFsyncSlow", False, lateness("duolog_fsync_seconds", "0.2", "0+60x30", "0+60x30")),
    Case("DuologSlowTurns", True, {TURNS: "0x20 4x10"}),
    Case("DuologSlowTurns", False, {TURNS: "0x20 2x10"}),
    Case("DuologSlowTurns", False, {TURNS: "9x30"}),
    Case("DuologRequestsRefused", True, errors("kafka", "NOT_COORDINATOR", "0+120x30")),
    Case("DuologRequestsRefused", True, errors("rocketmq", "SYSTEM_BUSY", "0+120x30")),
    Case("DuologRequestsRefused", True, errors("http", "503", "0+120x30")),
    Case("DuologRequestsRefused", False, errors("kafka", "NOT_COORDINATOR", "0+30x30")),
    Case("DuologRequestsRefused", False, errors("kafka", "MEMBER_ID_REQUIRED", "0+120x30")),
    Case("DuologRequestsRefused", False, errors("kafka", "REBALANCE_IN_PROGRESS", "0+120x30")),
    Case("DuologConnectionsRefused", True, {"duolog_connections_refused_total": "0+1x30"}),
    Case("DuologConnectionsRefused", False, {"duolog_connections_refused_total": "7x30"}),
    Case("DuologCheckBacksGivenUp", True, {GIVEN_UP: "0x25 1x5"}),
    Case("DuologCheckBacksGivenUp", False, {GIVEN_UP: "1x30", ASKED: "0+9x30"}),
    Case("DuologFault", True, {FAULTS: "1x25 2x5"}),
    Case("DuologFault", True, {FAULTS: "_x25 1x5"}),  # The first one makes the series.
    Case("DuologFault", False, {FAULTS: "1x30"}),
    Case("DuologRecordSetAside", True, {POISONED: "1x25 2x5"}),
    Case("DuologRecordSetAside", True, {POISONED: "_x25 1x5"}),
    Case("DuologRecordSetAside", False, {POISONED: "1x30"}),
]


def test_table_has_each_alert_with_values_of_both_kinds() -> None:
    named = {(case.alert, case.fires) for case in CASES}
    assert named == {(alert.name, fires) for alert in ALERTS for fires in (True, False)}


@pytest.fixture(scope="module")
def rules() -> str:
    return duolog("dashboard", "alerts")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert} {'' if case.fires else 'not '}{case.series}")
def test_alert_fires_for_what_it_is_for(case: Case, rules: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules)
    firing = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing",instance="broker"}})'
    expected = [{"labels": "{}", "value": 1}] if case.fires else []
    tested = {
        "interval": "1m",
        "input_series": [{"series": of_broker(name), "values": values} for name, values in case.series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": f"{AT_MINUTES}m", "exp_samples": expected}],
    }
    said = promtool(tmp_path, {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [tested]})
    assert said.returncode == 0, said.stdout + said.stderr


def of_broker(series: str) -> str:
    """Return the series with the label that a scrape adds."""
    name, _, labels = series.rstrip("}").partition("{")
    return f"{name}{{{','.join(filter(None, (labels, INSTANCE)))}}}"


INSTANCE = 'instance="broker"'


def promtool(folder: Path, tests: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "tests.yml").write_text(json.dumps(tests))  # JSON is YAML.
    command = [program("promtool"), "test", "rules", "tests.yml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
