"""Runs a generator of slices to its end."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finished(slices: Generator[None, None, T]) -> T:
    """Run all slices, and return the generator's result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: T = end.value
            return found
