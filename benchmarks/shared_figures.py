"""The figures of `benchmarks/shared.py`, as a table for a terminal and as the tables of docs/benchmarks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from rich.table import Table


class Figure(NamedTuple):
    """One figure. `goal` is in words, and `is_met` is None for a figure without one."""

    what: str
    value: float
    unit: str
    goal: str = ""
    is_met: bool | None = None
    store: str = ""  # The store of a figure that is measured with several ones.

    @property
    def shown(self) -> str:
        return f"{self.value:,.0f}" if self.value >= 1000 else f"{self.value:.3g}"

    @property
    def met(self) -> str:
        return "" if self.is_met is None else "yes" if self.is_met else "no"


def table(figures: Sequence[Figure]) -> Table:
    shown = Table(title="A log in object storage", title_justify="left")
    shown.add_column("what")
    for heading in ("figure", "unit", "goal", ""):
        shown.add_column(heading, justify="left" if heading == "unit" else "right")
    for each in figures:
        what = f"{each.store}: {each.what}" if each.store else each.what
        shown.add_row(what, each.shown, each.unit, each.goal, each.met)
    return shown


# -- Markdown


def markdown(figures: Sequence[Figure], scale: str, loads: Sequence[float]) -> str:
    """Return the tables of docs/benchmarks/shared-storage.md. `loads` are load averages during the run."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    when = datetime.now(UTC).date()
    lines = [
        f"Commit {commit.stdout.strip()} ({when}); one run ({scale}) on {os.cpu_count()} cores; load average "
        f"{min(loads):.1f} to {max(loads):.1f}.",
        "",
        *_by_store([each for each in figures if each.store]),
        "",
        "| | | goal | met |",
        "|---|---|---|---|",
        *(f"| {each.what.strip()} | {_cell(each)} | {each.goal} | {each.met} |" for each in figures if not each.store),
    ]
    return "\n".join(lines) + "\n"


def _by_store(figures: Sequence[Figure]) -> Iterator[str]:
    """Yield the lines of a table with a column for each store."""
    stores = [*dict.fromkeys(each.store for each in figures)]
    yield f"| | {' | '.join(stores)} | goal | met |"
    yield "|---" * (len(stores) + 3) + "|"
    for what in dict.fromkeys(each.what for each in figures):
        row = {each.store: each for each in figures if each.what == what}
        cells = [_cell(row[store]) if store in row else "" for store in stores]
        goals = " / ".join(dict.fromkeys(each.goal for each in row.values() if each.goal))
        met = " / ".join(dict.fromkeys(each.met for each in row.values() if each.met))
        yield f"| {what.strip()} | {' | '.join(cells)} | {goals} | {met} |"


def _cell(figure: Figure) -> str:
    return f"{figure.shown} {figure.unit}".strip()
