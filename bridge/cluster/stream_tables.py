"""The class StreamTables: the sorted tables of delayed messages of a broker that shares its log.

    owner       copy         a new table is uploaded before a manifest in the log names it
                remove       its objects are deleted once the store has a manifest without it
    standby     follow       what the log names is downloaded, one table after another
    takeover    complete     every table is on the disk, was checked, and is open, before this broker serves

Only the last manifest of the log counts. The objects of its tables exist, because `remove` is called once a
later manifest counts. A table has a number that no other owner of the stream uses (`first_number`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from duolog.delay.tables.table_files import check_files
from duolog.delay.tables.table_format import TIMERS_DIRECTORY, TableEntry, TableFile, files_of, first_number
from duolog.delay.timers import Timers
from duolog.store.errors import Corruption, StoreError
from duolog.store.files import Files
from duolog.store.shared.files.named_files import NamedFiles
from duolog.store.shared.requests import RequestsStopped
from duolog.store.shared.wal.wal_object import DamagedObject, damaged
from duolog.store.workers import Failure

FOLLOW_S: Final = 1.0  # Between two looks at the manifest.
RETRY_S: Final = 10.0  # After a failure of the disk, or while an object is missing.

log = logging.getLogger("cluster")


class StreamTables:
    """The tables of one broker: files in its data directory, and objects. It is used in the loop."""

    def __init__(self, timers: Timers, files: Files, objects: NamedFiles) -> None:
        self._tree, self._files, self._objects = timers.tree, files, objects
        self._tree.context.table_copies = self
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._is_ended = asyncio.Event()  # This broker follows no more.

    @property
    def _manifest(self) -> Sequence[TableEntry]:
        return self._tree.context.tables.manifest

    # -- Standby

    def begin(self) -> None:
        """Begin to download what the log names, as far as it was replayed."""
        self._following = asyncio.create_task(self._follow())

    def stop(self) -> None:
        self._is_ended.set()

    async def _follow(self) -> None:
        named: set[TableFile] = set()
        while not self._is_ended.is_set():
            before, named = named, {file for entry in self._manifest for file in files_of(entry)}
            try:
                pause_s = FOLLOW_S if await self._follow_once(before, named) else RETRY_S
            except RequestsStopped:
                return
            except OSError as error:
                log.warning("delayed messages not downloaded yet, it is tried again: %s", error)
                pause_s = RETRY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_ended.wait()

    async def _follow_once(self, before: set[TableFile], named: set[TableFile]) -> bool:
        """Remove files that are no longer named, and download those that are missing; return whether all are there.

        An object may be missing, because the owner's log is ahead of this copy. Raises RequestsStopped and OSError.
        """
        self._objects.remove_partial(TIMERS_DIRECTORY)
        is_complete = True
        existing = {f"{TIMERS_DIRECTORY}/{name}" for name in self._files.list(TIMERS_DIRECTORY)}
        for path in sorted({file.path for file in before - named} & existing - {file.path for file in named}):
            await asyncio.to_thread(self._files.remove, path)
        for file in sorted(named):
            if not self._is_ended.is_set() and file.path not in existing:
                is_complete = await self._objects.download(*file) is None and is_complete
        return is_complete

    # -- Takeover

    async def complete(self, epoch: int, confirm: Callable[[], Awaitable[None]]) -> None:
        """Return when all tables of the manifest are on the disk and open. To be called by the owner of the stream.

        `confirm` is `Replica.confirm`. Raises StoreError, RequestsStopped and OSError.
        """
        self.stop()
        if self._following is not None:
            await self._following
        self._objects.remove_partial(TIMERS_DIRECTORY)
        try:
            for entry in self._manifest:
                await self._complete(entry)
        except DamagedObject:
            await confirm()  # If this broker was paused, a later owner may have deleted the object.
            raise
        await asyncio.to_thread(self._tree.read_tables, first_number(epoch), may_lose=False)
        named = {file.path for entry in self._manifest for file in files_of(entry)}
        self._begin(self._delete_unnamed(first_number(epoch), named))

    async def _complete(self, entry: TableEntry) -> None:
        """Download a table that is missing or damaged on the disk, and check it."""
        with suppress(Corruption):
            return await asyncio.to_thread(check_files, self._files, entry)
        for file in files_of(entry):
            missing = await self._objects.download(*file)
            if missing is not None:
                raise damaged(missing.key, "it does not exist, or is too short")
        try:
            await asyncio.to_thread(check_files, self._files, entry)
        except Corruption as error:
            raise damaged(f"{files_of(entry)[0].path}/...", str(error)) from error

    async def _delete_unnamed(self, first: int, named: set[str]) -> None:
        """Delete what earlier owners have uploaded and no manifest has named: none of this owner's epoch will."""

        def is_needed(path: str) -> bool:
            number = path.rpartition("/")[2].partition(".")[0]
            return path in named or not number.isdecimal() or int(number) >= first

        with suppress(RequestsStopped):
            await self._objects.delete_others(TIMERS_DIRECTORY, is_needed)

    # -- Owner (TableCopies)

    def copy(self, files: Sequence[TableFile], done: Callable[[Failure | None], None]) -> None:
        self._begin(self._upload(files, done))

    async def _upload(self, files: Sequence[TableFile], done: Callable[[Failure | None], None]) -> None:
        outcome: Failure | None = None
        try:
            for file in files:
                await self._objects.upload(*file)
        except RequestsStopped:
            outcome = StoreError("the broker sends no request to the object store any more")
        except (StoreError, OSError) as error:
            outcome = error
        # Not called in this task, because the loop reports what a callback raises, and a task keeps it.
        asyncio.get_running_loop().call_soon(done, outcome)

    def remove(self, files: Sequence[TableFile]) -> None:
        self._begin(self._delete(files))

    async def _delete(self, files: Sequence[TableFile]) -> None:
        with suppress(RequestsStopped):
            await self._objects.delete(files)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
