"""Proves that the dashboard and the alerts name metrics and labels that a broker exports."""

import json
import re

import pytest

from duolog.bridge.cli.dashboards import ALERTS, PANELS
from duolog.bridge.http.metrics.exposition import families
from tests.kit.core import ManualCore
from tests.unit.bridge.cli.test_main import run

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
EXPRESSIONS = [expr for panel in PANELS for expr, _ in panel.queries] + [alert.expr for alert in ALERTS]


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_metrics_and_labels_of_an_expression_are_exported(expr: str) -> None:
    labels_of: dict[str, set[str]] = {}
    for family in families(ManualCore().http_context()):
        labels = {"instance", *getattr(family, "_labelnames", ())}
        names = {f"{family.name}_total"} if family.type == "counter" else {family.name}
        if family.type == "histogram":
            names, labels = {family.name + suffix for suffix in HISTOGRAM_SUFFIXES}, labels | {"le"}
        labels_of |= dict.fromkeys(names, labels)
    named = set(re.findall(r"\bduolog_\w+", expr))
    assert named
    assert named <= labels_of.keys()
    used = {label.strip() for by in re.findall(r"\bby \(([^)]*)\)", expr) for label in by.split(",")}
    used |= set(re.findall(r"[{,](\w+)=", expr))
    assert all(used <= labels_of[name] for name in named), expr


def test_grafana_gets_a_panel_for_each_question_and_places_them_apart(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("dashboard grafana", capsys)
    assert status == 0
    found = json.loads(out)
    assert [panel["title"] for panel in found["panels"]] == [panel.title for panel in PANELS]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]}
    ids = {panel["id"] for panel in found["panels"]}
    assert len(places) == len(ids) == len(PANELS)


def test_prometheus_gets_a_rule_for_each_alert(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("dashboard alerts", capsys)
    assert status == 0
    assert re.findall(r"^      - alert: (\w+)$", out, re.MULTILINE) == [alert.name for alert in ALERTS]
    quoted = re.findall(r"^        expr: (\".*\")$", out, re.MULTILINE)
    assert [json.loads(expr) for expr in quoted] == [alert.expr for alert in ALERTS]


def test_files_for_other_programs_are_json_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("dashboard grafana --json", capsys) == run("dashboard grafana", capsys)
    (group,) = json.loads(run("dashboard alerts --json", capsys)[1])["groups"]
    assert [rule["expr"] for rule in group["rules"]] == [alert.expr for alert in ALERTS]
    assert [rule.get("for", "") for rule in group["rules"]] == [alert.lasts for alert in ALERTS]
