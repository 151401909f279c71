"""A table as it is at one moment, read some entries at a time while it goes on changing: for snapshots of large state.

    begin(names)           the moment
    before_change(name)    the owner says so before it changes, replaces or removes what lies under a name
    keep(name, value)      the same, where the value at that moment is known to the owner
    entries()              (name, value) of each, as they were at that moment, in the order of the names
    end()                  no more are wanted; nothing is kept any more

What is changed before it was read is copied then, and what is read is copied, so the copies that exist are those of
what changes meanwhile. While nothing is read, `before_change` need not be called: `is_active` tells.
"""

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CopyOnWrite(Generic[K, V]):
    """`copy` gives the value under a name, in a form that no later change reaches; None if there is none."""

    __slots__ = ("_copied", "_copy", "_left", "_names", "is_active")

    def __init__(self, copy: Callable[[K], V | None]) -> None:
        self._copy = copy
        self._names: list[K] = []
        self._left: set[K] = set()  # those whose entries were neither read nor copied
        self._copied: dict[K, V | None] = {}
        self.is_active = False

    def begin(self, names: Collection[K]) -> None:
        """Some 20 ns for each name of a dict, whose hashes are known."""
        self._names = [*names]
        self._left, self._copied, self.is_active = set(names), {}, True

    def before_change(self, name: K) -> None:
        if name in self._left:
            self._left.discard(name)
            self._copied[name] = self._copy(name)

    def keep(self, name: K, value: V) -> None:
        if name in self._left:
            self._left.discard(name)
            self._copied[name] = value

    def entries(self) -> Iterator[tuple[K, V]]:
        for name in self._names:
            if name in self._left:
                self._left.discard(name)
                value = self._copy(name)
            else:
                value = self._copied.pop(name, None)
            if value is not None:
                yield name, value

    def end(self) -> None:
        self._names, self._left, self._copied, self.is_active = [], set(), {}, False
