"""Copy on write: a table as it was at one moment, read in slices while the table goes on changing.

Snapshots of large state use it.

    begin(names)           fixes the moment
    before_change(name)    the owner calls it before it changes, replaces or removes the value of a name
    keep(name, value)      the same, if the owner has the value at that moment at hand
    entries()              yields (name, value) as they were at that moment, in the order of the names
    end()                  releases the copies

A value is copied when it is read, or before it changes if it was not read yet. So the copies in memory are those of the
values that changed meanwhile. Between `end` and `begin` `before_change` does nothing; hot paths check `is_active`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CopyOnWrite(Generic[K, V]):
    """`copy` returns a copy of the value of a name that later changes do not alter; None if there is no such name."""

    __slots__ = ("_copied", "_copy", "_names", "is_active")

    def __init__(self, copy: Callable[[K], V | None]) -> None:
        self._copy = copy
        self._names: list[K] = []
        self._copied: dict[K, V | None] = {}  # None: the value was read already, or the name was not in the table.
        self.is_active = False

    def begin(self, names: Iterable[K]) -> None:
        """Fix the moment. It copies the names only, at 5 ns for each name of a dict and 60 ns of an OrderedDict."""
        self._names, self._copied, self.is_active = [*names], {}, True

    def before_change(self, name: K) -> None:
        if self.is_active and name not in self._copied:
            self._copied[name] = self._copy(name)

    def keep(self, name: K, value: V) -> None:
        if self.is_active:
            self._copied.setdefault(name, value)

    def entries(self) -> Iterator[tuple[K, V]]:
        copied = self._copied
        for name in self._names:
            value = copied[name] if name in copied else self._copy(name)
            copied[name] = None
            if value is not None:
                yield name, value

    def end(self) -> None:
        self._names, self._copied, self.is_active = [], {}, False
