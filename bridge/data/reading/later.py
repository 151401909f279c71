"""Reads that may have to wait for the disk, or for a thread: what they give comes at once, or as a `Later`."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from duolog.store.entry import Stored
from duolog.store.errors import Fault, StoreError
from duolog.store.log.cold_read import ColdRead
from duolog.store.workers import Executor

T = TypeVar("T")
U = TypeVar("U")


class Reading(Protocol):
    """What a thread does: `start` has `done` called in the loop with what it found, or the StoreError."""

    def start(self, done: Callable[[Any], None]) -> None: ...


class InThread:
    """Work on what is in memory that would take long in the loop: to inflate a batch, and to look at its records."""

    def __init__(self, readers: Executor, run: Callable[[], Any]) -> None:
        self._readers, self._run = readers, run

    def start(self, done: Callable[[Any], None]) -> None:
        self._readers.submit(self._run, done)


class Later(Generic[T]):
    """A read that waits for a thread. Start it once; `done` is called in the loop with what it gives, or why not."""

    __slots__ = ("_cold", "_then")

    def __init__(self, cold: Reading, then: "Callable[[Any], T | Later[T]]") -> None:
        self._cold, self._then = cold, then

    def start(self, done: Callable[[T | StoreError], None]) -> None:
        def finish(found: Any) -> None:
            if isinstance(found, StoreError):
                done(found)
                return
            try:
                result = self._then(found)
            except StoreError as error:
                done(error)
                return
            except Exception as bug:
                done(Fault(f"what was read could not be used: {bug!r}"))
                raise
            if isinstance(result, Later):
                result.start(done)
            else:
                done(result)

        self._cold.start(finish)


def then(found: list[Stored] | ColdRead, go_on: "Callable[[list[Stored]], U | Later[U]]") -> "U | Later[U]":
    """Give what `go_on` makes of the entries, now or when they were read."""
    return Later(found, go_on) if isinstance(found, ColdRead) else go_on(found)


def listed(found: Stored | ColdRead | None) -> list[Stored] | ColdRead:
    """Give the entry that was found as a list, for `then`; none if there is none."""
    if found is None:
        return []
    return found if isinstance(found, ColdRead) else [found]
