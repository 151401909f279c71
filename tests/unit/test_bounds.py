"""The tables of docs/internals/limits.md name settings that exist, with their defaults, and tests that reach them;
and every setting that is a limit has a row."""

import re
from pathlib import Path

import pytest

from duolog.bridge.config.options import settings

ROOT = Path(__file__).parents[2]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
NO_LIMITS_OF_CLIENTS = {  # They are named like limits, but nothing that a client sends grows up to them.
    "store.reserve_bytes",
    "store.open_segments_max",
    "store.checkpoint_bytes",
    "store.recovery_checkpoint_bytes",
    "store.spare_bytes",
    "shared.object_bytes",
    "shared.in_flight_bytes",
    "leases.lease_ms_max",
    "txn.check_max",
}


def rows() -> list[list[str]]:
    """Give the cells of each row of all tables."""
    lines = (ROOT / "docs" / "internals" / "limits.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| what |")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in rows()])
def test_row_is_true(row: list[str]) -> None:
    _, setting, default, _, tests = row
    known = {each.name: each.default for each in settings()}
    for name in names_in(setting):
        assert name in known, "no such setting"
    if default and re.fullmatch(r"`[^`]*`", setting):
        number, _, unit = default.partition(" ")
        assert float(number) * UNITS.get(unit, 1) == float(known[setting.strip("`")]), "not the setting's default"
    assert names_in(tests), "no test reaches it"
    texts = [(ROOT / test).read_text(encoding="utf-8") for test in names_in(tests)]
    for name in names_in(setting):
        field = rf"\b_?{name.rpartition('.')[2]}\b"
        assert any(re.search(field, text) for text in texts), f"none of the tests mentions {name}"


def test_each_setting_that_is_a_limit_has_a_row() -> None:
    limits = {each.name for each in settings() if re.search(r"_(max|bytes)$", each.name)}
    in_table = {name for row in rows() for name in names_in(row[1])}
    assert limits - in_table == NO_LIMITS_OF_CLIENTS
