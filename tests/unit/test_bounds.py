"""The table of limits in ARCHITECTURE.md names settings that exist, with their defaults, and tests that exist."""

import re
from pathlib import Path

import pytest

from bridge.config import settings

ROOT = Path(__file__).parents[2]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def rows() -> list[list[str]]:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text[text.index("\n## Bounds\n") : text.index("\n## Errors\n")]
    lines = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in rows()])
def test_row_is_true(row: list[str]) -> None:
    _, setting, default, _, tests = row
    known = {each.name: each.default for each in settings()}
    for name in re.findall(r"`([^`]*)`", setting):
        assert name in known, "no such setting"
    if default and re.fullmatch(r"`[^`]*`", setting):
        number, _, unit = default.partition(" ")
        assert float(number) * UNITS.get(unit, 1) == float(known[setting.strip("`")]), "not the setting's default"
    for test in re.findall(r"`([^`]*)`", tests):
        assert (ROOT / test).is_file(), "no such test"
