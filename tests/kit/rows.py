"""Rows of a test: which rows `make unit` runs, and the name of the row that failed.

    @pytest.mark.parametrize("seed", first_in_unit(range(8), 3))    # `make test` runs all 8

    for version in VERSIONS:
        with named_row(version=version):
            assert ...

If an assertion of the block fails, the failure ends with "in the row version=3".
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def first_in_unit(values: Iterable[object], count: int) -> list[Any]:
    """Return the values as parameters of a test, of which `make unit` runs the first `count`.

    The first values must show the behaviour; the others only repeat it with more seeds or sizes.
    """
    further = pytest.mark.further_rows
    return [value if at < count else pytest.param(value, marks=further) for at, value in enumerate(values)]


@contextmanager
def named_row(**values: object) -> Iterator[None]:
    """Name the row in the failure of the block. A loop over rows costs less than a test for each row."""
    try:
        yield
    except BaseException as error:
        error.add_note("in the row " + " ".join(f"{name}={value}" for name, value in values.items()))
        raise
