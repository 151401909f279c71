"""The tables that `python -m benchmarks` prints, and the same figures as values for a JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.contenders import OURS
from benchmarks.end_to_end import Outcome
from benchmarks.goals import Goal
from benchmarks.paths import Measured


def paths_table(measured: Sequence[Measured]) -> Table:
    """Print the hot paths in process, each beside its budget."""
    table = Table(title="Hot paths in process", title_justify="left")
    for heading, justify in (("path", "left"), ("unit", "left"), ("us", "right"), ("budget", "right"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for each in measured:
        budget = "" if each.budget_us is None else f"{each.budget_us:.3g}"
        met = None if each.budget_us is None else each.us <= each.budget_us
        table.add_row(each.path, each.unit, _number(each.us), budget, _yes_or_no(met))
    return table


def rows_table(outcomes: Sequence[Outcome], title: str) -> Table:
    """Print the rows end to end, each figure beside the peer's of the same run."""
    table = Table(title=title, title_justify="left")
    table.add_column("row")
    table.add_column("figure")
    for heading in ("duolog", "peer", "ratio", "goal"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for outcome in outcomes:
        row = outcome.row
        if outcome.error:
            table.add_row(row.title, Text(outcome.error.splitlines()[0][:200], style="red"), "", "", "", "", "")
        for number, (figure, goal) in enumerate(outcome.goals.items()):
            cells = [_number(outcome.median(who, figure)) for who in (OURS, row.peer)]
            ratio = outcome.ratio(figure)
            label = "" if number or outcome.error else row.title
            shown = "" if ratio is None else f"{ratio:.2f}"
            table.add_row(label, figure, *cells, shown, str(goal), _yes_or_no(_is_met(outcome, figure, goal)))
        table.add_section()
    return table


def as_values(measured: Sequence[Measured], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return all figures of all rounds, for a JSON file."""
    return {
        "paths": [each._asdict() for each in measured],
        "rows": [
            {
                "name": outcome.row.name,
                "title": outcome.row.title,
                "peer": outcome.row.peer,
                "error": outcome.error,
                "rounds": outcome.figures,
                "figures": {
                    figure: {
                        "duolog": outcome.median(OURS, figure),
                        "peer": outcome.median(outcome.row.peer, figure),
                        "ratio": outcome.ratio(figure),
                        "goal": str(goal),
                        "is_met": _is_met(outcome, figure, goal),
                    }
                    for figure, goal in outcome.goals.items()
                },
            }
            for outcome in outcomes
        ],
    }


def _is_met(outcome: Outcome, figure: str, goal: Goal) -> bool | None:
    value = outcome.median(OURS, figure)
    return None if value is None else goal.is_met(value, outcome.ratio(figure))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _yes_or_no(met: bool | None) -> Text:
    return Text("") if met is None else Text("yes", style="green") if met else Text("no", style="bold red")
