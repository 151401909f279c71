"""The first page: whether the broker is well, and what it does."""

from typing import Any

from duolog.bridge.console.commands import duolog
from duolog.bridge.console.pages.page import Page, PageApi

WIRES = {"kafka": "Kafka", "rocketmq": "RocketMQ", "http": "HTTP"}
# The page that shows more about a warning.
PAGES_OF = {
    "set_aside": "/#set-aside", "faults": "/console/log?level=error", "slow_turns": "/console/log?level=warning",
    "overdue": "/console/delayed", "late": "/console/delayed", "paused": "/console/delayed",
    "dead_letters": "/console/dead-letters",
    "given_up": "/console/transactions", "hanging": "/console/transactions",
    "damaged": "/console/log?level=error", "lost": "/console/log?level=error",
}  # fmt: skip


async def overview(api: PageApi) -> Page:
    status = await api.get("/api/status", words=duolog("status"))
    warnings = await api.get("/api/warnings", words=duolog("warnings"))
    history = await api.get("/api/history", words=duolog("history"))
    set_aside = await api.get("/api/poison", words=duolog("poison", "list"))
    pending = await api.get("/api/timers/count")
    intervals = history["intervals"]
    return Page(
        "overview.html",
        "Overview",
        {
            "status": status,
            "warnings": [row | {"page": PAGES_OF.get(row["kind"])} for row in warnings],
            "set_aside": [row for row in set_aside["records"] if not row["is_acknowledged"]],
            "pending": pending["count"],
            "last": intervals[-1] if intervals else None,
            "times_s": [row["at_ms"] // 1000 for row in intervals],
            "charts": _charts(intervals),
            "wires": WIRES,
            "slow_turns": sum(row["long_turns"] for row in intervals),
        },
    )


def _charts(intervals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the charts, all of which have the same times."""

    def chart(label: str, **series: list[Any]) -> dict[str, Any]:
        named = [{"label": name.replace("_", " "), "values": values} for name, values in series.items()]
        return {"kind": "lines", "label": label, "series": named}

    def by_wire(field: str) -> dict[str, list[Any]]:
        return {name: [row[field][wire] for row in intervals] for wire, name in WIRES.items()}

    return [
        chart("Records in, by second", **by_wire("records_in")),
        chart("Records out, by second", **by_wire("records_out")),
        chart(
            "Lateness of delayed messages, in milliseconds",
            median=[row["late_p50_ms"] for row in intervals],
            **{"99th percentile": [row["late_p99_ms"] for row in intervals]},
        ),
        chart("Time of an fsync, in milliseconds", mean=[row["fsync_ms"] for row in intervals]),
    ]
