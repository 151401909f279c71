"""Attributes that have other values while a block runs: bugs that are planted, and constants that are made small."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Replacement = tuple[Any, str, Any]  # The object, the name of its attribute, and what replaces it.


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
