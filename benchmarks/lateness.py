"""The results of `benchmarks/delay.py`, as a table and as a plot of the lateness curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.contenders import OTHER_CHECKOUT, OURS

PERCENTILES = ("p50", "p99", "p999", "max")
PLOTTED = ("rate-1k", "rate-quick", "burst-20k-moment", "burst-100k-moment", "burst-500k-moment")
PANELS_MAX = 4  # Only the first rows are plotted.
COLOURS = {OURS: "#1f6feb", "duolog sync": "#79b8ff", "rocketmq": "#d1495b", OTHER_CHECKOUT: "#6e7781"}
LABELS = {
    OURS: "Duolog, async", "duolog sync": "Duolog, sync", "rocketmq": "Apache RocketMQ, async",
    OTHER_CHECKOUT: "another checkout of Duolog, async",
}  # fmt: skip


class Row(NamedTuple):
    """One load and its goals: upper bounds of figures by their paths (`received.p99`)."""

    name: str
    title: str
    arguments: dict[str, int]
    goals: tuple[tuple[str, float], ...] = ()
    topics: int = 1
    pending: int | None = None  # Pending messages beside the load, due tomorrow. None: a row beside Apache RocketMQ.
    is_quick: bool = False


class Measured(NamedTuple):
    """The results of one contender in one row; `error` has the reason if there are none."""

    row: str
    contender: str
    found: dict[str, Any]
    error: str = ""

    @property
    def shown(self) -> str:
        found = {name: value for name, value in self.found.items() if name != "curve"}
        return self.error or str(found)

    def figure(self, way: str) -> float | None:
        value: Any = self.found
        for name in way.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return None if value is None else float(value)


def medians(rounds: Sequence[Any]) -> Any:
    """Return the median of each figure over the rounds, and the last round's value of all that are no numbers."""
    first = rounds[0]
    if len(rounds) == 1:
        return first
    if isinstance(first, dict):
        return {name: medians([each[name] for each in rounds]) for name in first}
    if isinstance(first, list):
        return [medians(each) for each in zip(*rounds, strict=True)]
    if isinstance(first, bool):
        return all(rounds)
    return round(median(rounds), 1) if isinstance(first, float) else int(median(rounds))


# -- The table


def table(rows: Sequence[Row], measured: Sequence[Measured]) -> Table:
    shown = Table(title="Lateness in ms: p50 / p99 / p99.9 / max", title_justify="left")
    for heading in ("load", "contender", "by store time", "by receipt", "within", "early", "CPU us", "goals"):
        shown.add_column(heading, justify="left" if heading in ("load", "contender", "goals") else "right")
    for row in rows:
        of_row = [each for each in measured if each.row == row.name]
        for number, each in enumerate(of_row):
            title = "" if number else row.title
            if each.error:
                shown.add_row(title, each.contender, each.error)
            else:
                shown.add_row(title, each.contender, *_cells(row, each), "; ".join(_goals(row, each)))
        if of_row:
            shown.add_section()
    shown.caption = (
        "within: the last one stored, received, after the last due time. *: some were sent when others were due"
    )
    return shown


def _cells(row: Row, each: Measured) -> Iterator[str]:
    found = each.found
    for late in (found["stored"], found["received"]):
        yield " / ".join(str(late.get(name, "-")) for name in PERCENTILES)
    yield f"{found['stored_within_ms']}, {found['received_within_ms']}" + ("" if found["sent_in_time"] else " *")
    missing = row.arguments["count"] - found["messages"]
    yield f"{found['early']}, {missing} missing" if missing else str(found["early"])
    yield str(found["cpu_us"])


def _goals(row: Row, each: Measured) -> Iterator[str]:
    """Return for each goal whether it is met, then the figures of the row without a goal."""
    is_ours = each.contender.startswith("duolog")
    for way, bound in row.goals:
        value, name = each.figure(way), way.replace("_", " ").replace(".", " ")
        if value is None:
            continue
        result = ("met" if value < bound else "MISSED") if is_ours else ""
        yield f"{name} {value:g} < {bound:g} {result}".rstrip() if is_ours else f"{name} {value:g}"
    if (idle := each.figure("idle_ms_a_s")) is not None:
        yield f"idle {idle:g} ms CPU/s"


# -- The plot


def plot(rows: Sequence[Row], measured: Sequence[Measured], path: Path) -> None:
    """Plot for some rows the share of messages that were received by a time after their due time."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "lateness", "svg.fonttype": "none"}  # The same figures give the same small file.
    from matplotlib.figure import Figure

    with_curve = [row for row in rows if any(_has_curve(each, row) for each in measured)]
    shown = [row for row in with_curve if row.name in PLOTTED][:PANELS_MAX] or with_curve[:PANELS_MAX]
    columns = min(2, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(4.6 * columns, 2.7 * lines), layout="constrained")
    for number, row in enumerate(shown, 1):
        axes = figure.add_subplot(lines, columns, number)
        for each in measured:
            if _has_curve(each, row):
                _draw(axes, each)
        axes.set(title=row.title, xscale="log", xlim=(0.8, None), ylim=(0, 101))
        axes.set_xlabel("ms after the due time")
        axes.set_ylabel("% received")
        axes.grid(visible=True, which="major", alpha=0.3)
    figure.axes[0].legend(loc="best", frameon=False, fontsize="small")
    figure.savefig(path, format="svg", metadata={"Date": None})


def _has_curve(each: Measured, row: Row) -> bool:
    return each.row == row.name and bool(each.found.get("curve"))


def _draw(axes: Any, each: Measured) -> None:
    curve = each.found["curve"]
    shares = [100 * number / (len(curve) - 1) for number in range(len(curve))]
    late_ms = [max(1, ms) for ms in curve]  # The resolution of the clocks is a millisecond.
    axes.plot(late_ms, shares, label=LABELS[each.contender], color=COLOURS[each.contender], linewidth=1.6)
