"""Work that is cut into slices, done at once."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finished(slices: Generator[None, None, T]) -> T:
    """Do all slices; returns what the work returns."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: T = end.value
            return found
