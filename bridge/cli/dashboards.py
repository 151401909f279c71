"""`duolog dashboard`: a Grafana dashboard and Prometheus rules for the metrics of a broker."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

import typer

from duolog.bridge.cli.common import new_app, show_json

dashboard_app = new_app("A dashboard and alerts for Duolog's metrics.")

PANEL_WIDTH, PANEL_HEIGHT = 12, 8  # In Grafana's grid, which has 24 columns.


class Panel(NamedTuple):
    """A panel of the dashboard: each query with its legend. The unit is one of Grafana's."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


class Alert(NamedTuple):
    """A rule of Prometheus. `lasts` is how long `expr` must hold; an empty text means at once."""

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str
    description: str


# Without the errors by which Kafka's groups work: a new member gets its id by the one, a rebalance calls all members by
# the other.
NOT_ROUTINE: Final = 'error!~"MEMBER_ID_REQUIRED|REBALANCE_IN_PROGRESS"'
ON: Final = 'instance=~"$instance"'
RATE: Final = "[$__rate_interval]"


def _rate(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}{{{ON}}}{RATE}))"


def _quantile(quantile: float, histogram: str) -> str:
    return f"histogram_quantile({quantile}, {_rate(histogram + '_bucket', 'le')})"


def _grown(metric: str) -> str:
    """Return whether a counter with a label `kind` grew, also if its series is new, which `increase` does not see."""
    grown = f"sum by (instance, kind) (increase({metric}[10m])) > 0"
    return f"{grown} or ({metric} unless {metric} offset 10m) > 0"


PANELS: Final = (
    Panel("Messages in", "cps", ((_rate("duolog_records_in_total", "wire"), "{{wire}}"),)),
    Panel("Messages out", "cps", ((_rate("duolog_records_out_total", "wire"), "{{wire}}"),)),
    Panel(
        "Bytes in and out",
        "Bps",
        (
            (_rate("duolog_record_bytes_in_total", "wire"), "{{wire}} in"),
            (_rate("duolog_record_bytes_out_total", "wire"), "{{wire}} out"),
        ),
    ),
    Panel(
        "Messages in by topic",
        "cps",
        ((f"topk(10, {_rate('duolog_topic_messages_in_total', 'topic')})", "{{topic}}"),),
    ),
    Panel(
        "Lag by group and topic",
        "short",
        ((f"topk(20, sum by (group, topic) (duolog_group_lag_messages{{{ON}}}))", "{{group}} {{topic}}"),),
    ),
    Panel(
        "Lateness of delayed messages",
        "s",
        (
            (_quantile(0.5, "duolog_timer_lateness_seconds"), "p50"),
            (_quantile(0.99, "duolog_timer_lateness_seconds"), "p99"),
            (f"max by (instance) (duolog_timer_overdue_seconds{{{ON}}})", "{{instance}} earliest not delivered"),
        ),
    ),
    Panel(
        "Pending messages",
        "short",
        (
            (f"sum(duolog_delayed_pending{{{ON}}})", "delayed"),
            (f"sum(duolog_half_messages_open{{{ON}}})", "half messages"),
        ),
    ),
    Panel(
        "Disk",
        "bytes",
        (
            (f"sum by (instance) (duolog_disk_used_bytes{{{ON}}})", "{{instance}} used"),
            (f"sum by (instance) (duolog_disk_total_bytes{{{ON}}})", "{{instance}} size"),
        ),
    ),
    Panel(
        "Duration of fsyncs",
        "s",
        ((_quantile(0.5, "duolog_fsync_seconds"), "p50"), (_quantile(0.99, "duolog_fsync_seconds"), "p99")),
    ),
    Panel(
        "Turns of the event loop",
        "s",
        ((_quantile(0.99, "duolog_loop_turn_seconds"), "p99"), (_quantile(0.999, "duolog_loop_turn_seconds"), "p99.9")),
    ),
    Panel(
        "Errors answered, connections refused",
        "cps",
        (
            (_rate("duolog_errors_total", "wire", "error"), "{{wire}} {{error}}"),
            (_rate("duolog_connections_refused_total", "instance"), "connections refused by {{instance}}"),
        ),
    ),
    Panel("Check-backs", "cps", ((_rate("duolog_check_backs_total", "result"), "{{result}}"),)),
    Panel(
        "Memory and connections",
        "short",
        (
            (f"sum by (instance) (duolog_resident_memory_bytes{{{ON}}})", "{{instance}} bytes of memory"),
            (f"sum by (instance) (duolog_connections{{{ON}}})", "{{instance}} connections"),
        ),
    ),
)

ALERTS: Final = (
    Alert(
        "DuologNotReady",
        "duolog_ready == 0",
        "1m",
        "critical",
        "Duolog refuses requests",
        "GET /readyz says why, for example a full disk.",
    ),
    Alert(
        "DuologDataDamaged",
        "duolog_damaged_places > 0",
        "",
        "critical",
        "Stored data of Duolog is damaged",
        "The log has lines 'sealed data is damaged'. Run duolog log verify, then restore a backup or repair.",
    ),
    Alert(
        "DuologGroupLags",
        "sum by (instance, group, topic) (duolog_group_lag_messages) > 100000 "
        "and sum by (instance, group, topic) (delta(duolog_group_lag_messages[10m])) > 0",
        "10m",
        "warning",
        "Group {{ $labels.group }} falls behind in topic {{ $labels.topic }}",
        "{{ $value }} messages are unread, and their number grows.",
    ),
    Alert(
        "DuologTimersLate",
        "histogram_quantile(0.99, sum by (instance, le) (rate(duolog_timer_lateness_seconds_bucket[5m]))) > 1",
        "5m",
        "warning",
        "Delayed messages are late",
        "One in a hundred is appended {{ $value }} seconds after it was due, or later.",
    ),
    Alert(
        "DuologTimersOverdue",
        "duolog_timer_overdue_seconds > 1",
        "1m",
        "critical",
        "Delayed messages that are due are not delivered",
        "The earliest one has waited for {{ $value }} seconds; GET /readyz and the log may say why.",
    ),
    Alert(
        "DuologDiskNearlyFull",
        "duolog_disk_used_bytes / duolog_disk_total_bytes > 0.85",
        "5m",
        "warning",
        "The disk of the data directory is nearly full",
        "{{ $value | humanizePercentage }} are in use; above store.disk_full_ratio, Duolog refuses writes.",
    ),
    Alert(
        "DuologFsyncSlow",
        "histogram_quantile(0.99, sum by (instance, le) (rate(duolog_fsync_seconds_bucket[5m]))) > 0.2",
        "5m",
        "warning",
        "The disk syncs slowly",
        "One fsync in a hundred takes {{ $value }} seconds or more; producers wait as long.",
    ),
    Alert(
        "DuologSlowTurns",
        "sum by (instance, kind) (increase(duolog_long_loop_turns_total[10m])) > 3",
        "",
        "warning",
        "The event loop is held up by {{ $labels.kind }}",
        "{{ $value }} turns of 100 ms or more in ten minutes; all clients wait meanwhile.",
    ),
    Alert(
        "DuologRequestsRefused",
        f"sum by (instance, wire, error) (rate(duolog_errors_total{{{NOT_ROUTINE}}}[5m])) > 1",
        "5m",
        "warning",
        "Requests of {{ $labels.wire }} clients are refused: {{ $labels.error }}",
        "{{ $value }} per second.",
    ),
    Alert(
        "DuologConnectionsRefused",
        "rate(duolog_connections_refused_total[5m]) > 0",
        "5m",
        "warning",
        "Connections are refused",
        "limits.connections_max is reached.",
    ),
    Alert(
        "DuologCheckBacksGivenUp",
        'increase(duolog_check_backs_total{result="given_up"}[10m]) > 0',
        "",
        "warning",
        "Half messages were given up without a verdict",
        "{{ $value }} in ten minutes; they are in topic TRANS_CHECK_MAX_TIME_TOPIC.",
    ),
    Alert(
        "DuologFault",
        _grown("duolog_faults_total"),
        "",
        "critical",
        "Duolog contained a bug in {{ $labels.kind }}",
        "The log has a line `fault contained` with the traceback.",
    ),
    Alert(
        "DuologRecordSetAside",
        _grown("duolog_poisoned_records_total"),
        "",
        "critical",
        "Duolog set a stored record aside: {{ $labels.kind }}",
        "`duolog poison list` shows the record.",
    ),
)


@dashboard_app.command()
def grafana(
    as_json: Annotated[bool, typer.Option("--json", help="changes nothing: the dashboard is JSON")] = False,
) -> None:
    """Print a dashboard for Grafana as JSON; import it in Grafana under Dashboards, New, Import."""
    show_json(dashboard())


@dashboard_app.command()
def alerts(as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML")] = False) -> None:
    """Print alerting rules for Prometheus as YAML; name the file under `rule_files` of its configuration."""
    rules = [_rule(alert) for alert in ALERTS]
    if as_json:
        show_json({"groups": [{"name": "duolog", "rules": rules}]})
    else:
        lines = (line for rule in rules for line in _lines_of(rule))
        typer.echo("\n".join(["groups:", "  - name: duolog", "    rules:", *lines]))


def dashboard() -> dict[str, Any]:
    """Return the dashboard. It asks for a data source, and shows all brokers or those that are selected."""
    return {
        "title": "Duolog",
        "uid": "duolog",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source(), _instances()]},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _instances() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Broker",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(duolog_uptime_seconds, instance)",
        "refresh": 2,  # When the time range changes.
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, 24 // PANEL_WIDTH)
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {"h": PANEL_HEIGHT, "w": PANEL_WIDTH, "x": column * PANEL_WIDTH, "y": row * PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "multi", "sort": "none"},
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for at, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": alert.lasts} if alert.lasts else {}),
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.description},
    }


def _lines_of(rule: Mapping[str, Any]) -> Iterator[str]:
    """Yield a rule, an item of the list `rules`, as lines of YAML."""
    margin = "      - "
    for name, value in rule.items():
        yield f"{margin}{name}:" if isinstance(value, dict) else f"{margin}{name}: {_scalar(value)}"
        margin = " " * len(margin)
        if isinstance(value, dict):
            yield from (f"{margin}  {inner}: {_scalar(text)}" for inner, text in value.items())


def _scalar(text: str) -> str:
    """Return a text as a scalar of YAML: a name or a duration as it is, others in quotes, with the escapes of JSON."""
    return text if text.isalnum() else json.dumps(text)
