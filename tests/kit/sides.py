"""A disk that records for each operation whether the event loop or a worker thread has run it.

disk = SidedDisk(CrashDisk())
store.executors.background = Threads(disk)      # the tasks that it runs count as a worker's
disk.calls                            # [Call(kind, path, side), ...]
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from duolog.store.errors import StoreError
from duolog.store.workers import Failure
from tests.kit.disk import CrashDisk

T = TypeVar("T")

LOOP, WORKER = "loop", "worker"
# Operations that may wait for a device: those that look up a name, change a directory or the blocks of a file, sync, or
# read what may not be in the page cache. A write goes to the page cache, `read_cached` does not wait, and `size` and
# `close` use an open file.
BLOCKING = frozenset(
    {
        "open", "create", "lock", "read", "read_on_disk", "list", "usage", "sync", "sync_directory", "truncate",
        "reserve", "rename", "remove", "remove_directory", "make_directory",
    }
)  # fmt: skip


class Call(NamedTuple):
    kind: str
    path: str
    side: str


class SidedDisk:
    """A disk that notes each operation with the side that called it."""

    def __init__(self, disk: CrashDisk | None = None) -> None:
        self.disk = disk or CrashDisk()
        self.side = LOOP
        self.calls: list[Call] = []
        self._paths: dict[int, str] = {}  # The paths of open handles.

    def __getattr__(self, kind: str) -> Any:
        found = getattr(self.disk, kind)
        return partial(self._call, kind, found) if callable(found) and not kind.startswith("_") else found

    def _call(self, kind: str, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        first = args[0] if args else "."
        path = first if isinstance(first, str) else self._paths.get(first, "?")
        named = "create" if options.get("create") else kind
        self.calls.append(Call(named, path, self.side))
        outcome = operation(*args, **options)
        if kind in ("open", "lock"):
            self._paths[outcome] = path
        return outcome

    def blocking_on_the_loop(self) -> list[Call]:
        return [call for call in self.calls if call.side == LOOP and call.kind in BLOCKING]

    def worker_kinds(self) -> set[str]:
        return {call.kind for call in self.calls if call.side == WORKER}


class Threads:
    """An executor whose tasks count as a worker's; they run when the test says so."""

    def __init__(self, disk: SidedDisk) -> None:
        self._disk = disk
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        self.waiting.append(lambda: self._run(run, done))

    def _run(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        outcome: T | Failure
        self._disk.side = WORKER
        try:
            outcome = run()
        except (StoreError, OSError) as error:
            outcome = error
        finally:
            self._disk.side = LOOP
        done(outcome)

    def run_all(self) -> bool:
        """Run the waiting tasks and their callbacks; return False if there were none."""
        had_any = bool(self.waiting)
        while self.waiting:
            self.waiting.popleft()()
        return had_any
