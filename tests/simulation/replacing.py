"""Attributes that have other values while a block runs: bugs that are planted, and constants that are made small."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any

Replacement = tuple[Any, str, Any]  # The object, the name of its attribute, and what replaces it.
Bug = Callable[[], list[Replacement]]


def by_name(*bugs: Bug) -> dict[str, Bug]:
    """Return bugs by their names, which say what is wrong."""
    return {bug.__name__: bug for bug in bugs}


def always(owner: type, name: str, value: object) -> list[Replacement]:
    """Replace a method, plain or async, by one that does nothing and returns this value."""

    def plain(self: object, *arguments: object) -> object:
        return value

    async def coroutine(self: object, *arguments: object) -> object:
        return value

    return [(owner, name, coroutine if iscoroutinefunction(owner.__dict__[name]) else plain)]


@contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Run the block with these attributes."""
    right = []
    try:
        for owner, name, value in replacements:
            right.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(right):
            setattr(owner, name, value)
