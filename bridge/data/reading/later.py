"""The class Later: the result of a read that must wait for the disk or for a thread."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from duolog.store.entry import Stored
from duolog.store.errors import Fault, StoreError
from duolog.store.log.cold_read import ColdRead
from duolog.store.workers import Executor

T = TypeVar("T")
U = TypeVar("U")


class Reading(Protocol):
    """Work of a thread. `start` begins it; `done` is called in the loop with the result or a StoreError."""

    def start(self, done: Callable[[Any], None]) -> None: ...


class InThread:
    """Work without the disk that would take long in the loop, such as inflating a batch and reading its records."""

    def __init__(self, readers: Executor, run: Callable[[], Any]) -> None:
        self._readers, self._run = readers, run

    def start(self, done: Callable[[Any], None]) -> None:
        self._readers.submit(self._run, done)


class Later(Generic[T]):
    """A read that waits for a thread. `start` is called once; `done` gets the result or a StoreError in the loop."""

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
    """Return what `go_on` makes of the entries, or a Later for it if the entries must be read first."""
    return Later(found, go_on) if isinstance(found, ColdRead) else go_on(found)


def listed(found: Stored | ColdRead | None) -> list[Stored] | ColdRead:
    """Return the found entry as a list, for `then`; an empty list if there is none."""
    if found is None:
        return []
    return found if isinstance(found, ColdRead) else [found]
