"""The class Tables: the manifest, which names the current sorted tables, and its changes.

    timers/0000000007.table            immutable (delay/tables/table_format.py)
    timers/0000000007.tombstones       grows (delay/tables/tombstones.py)

The *manifest* is a tuple of `TableEntry`, which one record of the log has. A table is *current* if the last manifest
names it; its `TableEntry` also says how many bytes of its tombstone file are valid. Every change of the manifest takes
the same three steps, so a crash leaves either the old tables or the new ones:

    1. in a worker    write the files and make them durable     TableWriter.finish, `run` of the others
    2. in the loop    commit the new manifest to the log        added, with_tombstones, compacted, with_starts; `switch`
    3. in a worker    remove old files once it is durable       removal

The tables of a stream have their tombstones in the log (delay/tables/logged_tombstones.py), and copies of their files
in the object store. A new table is copied between the steps 1 and 2 (`TableCopies` in delay/tree/jobs.py).

`switch` replays a manifest, live and at recovery. During recovery it only stores the last manifest. Then `open` opens
the files that this manifest names, and removes all others: tables and tombstones that no manifest named, and files
whose removal was interrupted. The log still has the timers of such tables and the deletions of such tombstones.

A `TablesView` keeps the tables open that were current when it was made, so a thread may read them while the loop
switches to other tables. A compaction writes eight tables of about one size as one, or a table of which half is deleted
anew. It begins another table when a result reaches TABLE_BYTES.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial

from duolog.delay.tables.compaction import TABLE_BYTES, TableCompaction
from duolog.delay.tables.logged_tombstones import LoggedTombstones, pack_rows
from duolog.delay.tables.sorted_table import RowRef, SortedTable
from duolog.delay.tables.table_format import TableEntry, TableFile, files_of, table_path
from duolog.delay.tables.table_writer import TableWriter
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tables.tombstones import TIMERS_DIRECTORY, TombstoneWrite, tombstones_path
from duolog.store.errors import Corruption
from duolog.store.files import Files

COMPACTION_WIDTH = 8  # The number of tables of about one size that are compacted into one.
DELETED_SHARE = 0.5  # A table with a greater share of deleted timers is written anew.

SET_ASIDE = ".damaged"  # The suffix of the name of a file that could not be opened.

TableManifest = tuple[TableEntry, ...]

log = logging.getLogger("delay")


def _go_on() -> None:
    pass


class Tables:
    """The current tables. The methods are called in the loop; the `run` of what they return is called in a worker.

    The class has more than 20 methods because reading, compacting and switching all depend on which files are open.
    """

    def __init__(self, files: Files) -> None:
        self.manifest: TableManifest = ()
        self.logged = LoggedTombstones()
        # Called after each block that a worker writes, so that other threads run.
        self.pause: Callable[[], object] = _go_on
        self._files = files
        self._open: dict[int, SortedTable] | None = None  # By number; None while the log is replayed.
        self._pins: dict[SortedTable, int] = {}  # How many views and compactions read each table.
        # Tables of the next manifest, by number. They are open already, because `switch` must not fail.
        self._ready: dict[int, SortedTable] = {}
        self._retired: list[SortedTable] = []  # No longer current; their files are not removed yet.
        self._next_number = 1
        self._compaction: TableCompaction | None = None
        # The number of timers in tables that were set aside at the start, or closed with damaged blocks.
        self._lost_before = 0
        self.is_repaired = False

    # -- The manifest

    def switch(self, manifest: TableManifest) -> None:
        """Replay a manifest: make exactly the tables that it names current."""
        self.manifest = manifest
        self.logged.keep({entry.number for entry in manifest})
        if self._open is None:
            return
        before, self._open = self._open, {}
        for entry in manifest:
            table = before.pop(entry.number, None)
            if table is None:
                table = self._ready.pop(entry.number)
            else:
                table.tombstones.committed(entry.tombstone_bytes - table.entry.tombstone_bytes)
                table.entry = entry
            self._open[entry.number] = table
        for table in before.values():
            self._retired.append(table)
            self._close_if_unused(table)

    def log_tombstones(self, packed: bytes) -> None:
        """Replay tombstones that the log has, and no file."""
        added = self.logged.add(packed, {entry.number for entry in self.manifest})
        if self._open is not None:
            for number, count in added.items():
                del self._open[number].tombstones.unwritten[:count]

    def open(self, first_number: int = 1, *, may_lose: bool = True) -> None:
        """Open the files that the last manifest names, and remove all others. Blocks; raises OSError.

        The broker starts although files are damaged. A table that is missing or cannot be read is renamed and left out
        of the manifest, and `lost` counts its timers. Tombstones after a damaged batch are dropped. `is_repaired` says
        whether the manifest has changed, and must be committed. If not `may_lose`, Corruption is raised instead,
        because the object store has the table. New tables have numbers from `first_number` on.
        """
        assert self._open is None, "the tables are open"
        self._files.make_directory(TIMERS_DIRECTORY)
        self._files.sync_directory(".")
        named = {file.path for entry in self.manifest for file in files_of(entry)}
        _remove(self._files, [path for path in _paths(self._files) if path not in named])
        self._next_number = max(first_number, 1 + max((entry.number for entry in self.manifest), default=0))
        self._open = {}
        for entry in self.manifest:
            try:
                self._open[entry.number] = self._open_table(entry)
            except Corruption as error:
                if not may_lose:
                    raise
                self._set_aside(entry, error)
        opened = tuple(table.entry for table in self._open.values())
        self.is_repaired, self.manifest = opened != self.manifest, opened

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def _open_table(self, entry: TableEntry) -> SortedTable:
        table = SortedTable(self._files, entry)
        try:
            table.check_indexes()
            if entry.tombstone_bytes:
                self._load_tombstones(table)
            table.tombstones.restore(self.logged.of(entry.number))
        except BaseException:
            table.close()
            raise
        return table

    def _load_tombstones(self, table: SortedTable) -> None:
        """Read the valid tombstones of a table, and truncate the file after them."""
        path, size = tombstones_path(table.entry.number), table.entry.tombstone_bytes
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            whole = 0
        else:
            try:
                whole = table.tombstones.load(self._files.read(file, size, 0))
                if self._files.size(file) > whole:
                    self._files.truncate(file, whole)
            finally:
                self._files.close(file)
        if whole < size:
            log.error(
                "cancelled delayed messages may be delivered: %s is damaged, or missing, from byte %d of %d on",
                path, whole, size,
            )  # fmt: skip
            table.entry = table.entry._replace(tombstone_bytes=whole)

    def _set_aside(self, entry: TableEntry, error: Corruption) -> None:
        """Keep the files of a table that cannot be opened, for an operator to examine."""
        timers = entry.count - entry.start
        self._lost_before += timers
        log.error("delayed messages are lost, their table is set aside: %s timers=%d", error, timers)
        names = set(_paths(self._files))
        for path in (table_path(entry.number), tombstones_path(entry.number)):
            if path in names:
                self._files.rename(path, path + SET_ASIDE)

    @property
    def lost(self) -> int:
        """The number of pending timers that damage has lost since the start, as far as reads have found it."""
        return self._lost_before + sum([table.lost for table in {*self._current.values(), *self._pins}])

    def close(self) -> None:
        """Close all files, at the end of the run."""
        for table in (*self._current.values(), *(table for table in self._retired if table in self._pins)):
            table.close()
        self._open, self._retired, self._pins = {}, [], {}

    # -- Reading

    def view(self) -> TablesView:
        """Return a view of the current tables, for the loop or a thread. They stay open until `TablesView.close`."""
        tables = tuple(self._current.values())
        self._pin(tables)
        return TablesView(tables, self.unpin)

    def _pin(self, tables: Iterable[SortedTable]) -> None:
        for table in tables:
            self._pins[table] = self._pins.get(table, 0) + 1

    def unpin(self, tables: Iterable[SortedTable]) -> None:
        for table in tables:
            self._pins[table] -= 1
            if not self._pins[table]:
                del self._pins[table]
                if self._current.get(table.entry.number) is not table:
                    self._close(table)

    def delete(self, table: SortedTable, ref: RowRef) -> None:
        """Add a tombstone. The log must keep the deletion until a manifest says that the tombstone file has it."""
        assert self.has(table), f"{table.path} is no longer current: find the timer again"
        if self._compaction is not None and table in self._compaction.inputs:
            self._compaction.deleted_meanwhile.append(ref.key)
        table.tombstones.add(ref.ordinal, ref.topic)

    def has(self, table: SortedTable) -> bool:
        """Return whether a table is still current. A view may have tables that are not."""
        return self._current.get(table.entry.number) is table

    @property
    def compacting(self) -> frozenset[int]:
        """The numbers of the tables that are being compacted."""
        return (
            frozenset()
            if self._compaction is None
            else frozenset(table.entry.number for table in self._compaction.inputs)
        )

    # -- Changes: each returns what a worker runs, or the manifest to commit after that

    def new_writer(self) -> Callable[[], TableWriter]:
        """Reserve the number of a new table, and return a function that a worker calls to begin its file.

        The table becomes current when the manifest that `added` returns is committed.
        """
        number = self._reserve(1)
        return lambda: TableWriter(self._files, number, pause=self.pause)

    def added(self, tables: Iterable[SortedTable]) -> TableManifest:
        """Return the manifest with these new tables."""
        self._ready = {table.entry.number: table for table in tables}
        return (*self.manifest, *(table.entry for table in self._ready.values()))

    def tombstone_writes(self) -> list[TombstoneWrite]:
        """Return the writes of all tombstones that files do not have yet.

        A worker runs each; then the caller commits the manifest that `with_tombstones` returns.
        """
        return [
            TombstoneWrite(self._files, table.tombstones, table.entry.tombstone_bytes)
            for table in self._current.values()
            if table.tombstones.unwritten
        ]

    def unlogged_tombstones(self) -> bytes:
        """Return all tombstones that neither the log nor a file has, packed for `log_tombstones`."""
        return b"".join([pack_rows(number, table.tombstones.unwritten) for number, table in self._current.items()])

    def with_tombstones(self, writes: Sequence[TombstoneWrite]) -> TableManifest:
        """Return the manifest in which the tombstones of these writes are valid."""
        ends = {write.number: write.end for write in writes}
        return tuple(
            entry._replace(tombstone_bytes=ends.get(entry.number, entry.tombstone_bytes)) for entry in self.manifest
        )

    def with_starts(self, starts: Mapping[int, int], manifest: TableManifest | None = None) -> TableManifest:
        """Return the manifest in which all timers before these ordinals, by table number, are deleted.

        Tables in which no timer is left are left out. Tables that are being compacted are not changed. `manifest` is
        the one to change; None stands for the current one.
        """
        compacting = self.compacting
        result = []
        for entry in self.manifest if manifest is None else manifest:
            if entry.number not in compacting:
                entry = entry._replace(start=max(entry.start, starts.get(entry.number, 0)))
                if entry.count == entry.start + self._current[entry.number].tombstones.count(entry.start, entry.count):
                    continue
            result.append(entry)
        return tuple(result)

    def compact(self, inputs: Sequence[SortedTable]) -> TableCompaction:
        """Begin a compaction of these tables. Only one compaction is under way at a time.

        A worker runs it; then the caller commits the manifest that `compacted` returns.
        """
        assert self._compaction is None, "a compaction is under way"
        size = sum(table.entry.size for table in inputs)
        self._compaction = TableCompaction(self._files, inputs, self._reserve(size // TABLE_BYTES + 1), self.pause)
        self._pin(inputs)
        return self._compaction

    def compaction_wanted(self) -> list[SortedTable]:
        """Return the tables to compact now; usually there are none."""
        if self._compaction is not None:
            return []
        classes: dict[int, list[SortedTable]] = {}
        for table in self._current.values():
            entry = table.entry
            if table.tombstones.total > entry.count * DELETED_SHARE:
                return [table]
            if entry.size < TABLE_BYTES // 2:
                classes.setdefault(entry.size.bit_length() // 2, []).append(table)
        enough = (alike[: 2 * COMPACTION_WIDTH] for alike in classes.values() if len(alike) >= COMPACTION_WIDTH)
        return next(enough, [])

    def compacted(self) -> TableManifest:
        """Return the manifest with the results of the compaction, which has run, instead of its inputs.

        Searches the results for the timers that were deleted during the compaction and have no tombstone there yet, so
        these should be few. If it raises OSError or Corruption, the caller must call `abandon_compaction`.
        """
        compaction = self._compaction
        assert compaction is not None, "no compaction is under way"
        compaction.mark_deleted()
        self.abandon_compaction()
        inputs = {table.entry.number for table in compaction.inputs}
        return tuple(entry for entry in self.added(compaction.outputs) if entry.number not in inputs)

    def abandon_compaction(self) -> None:
        """End the compaction, if it has not ended: it has failed, or its results are about to become current."""
        if self._compaction is not None:
            self.unpin(self._compaction.inputs)
            self._compaction = None

    def discard(self, tables: Sequence[SortedTable]) -> Callable[[], None]:
        """Close tables whose manifest was not committed; return a function that removes their files, for a worker."""
        self._ready = {}
        for table in tables:
            table.close()
        return partial(_remove, self._files, [table.path for table in tables])

    def retired_files(self) -> list[TableFile]:
        """Return the files that `removal` removes next, as far as a manifest has named them."""
        return [file for table in self._retired for file in files_of(table.entry)]

    def removal(self) -> Callable[[], None] | None:
        """Return a function that removes old files, for a worker once the current manifest is durable; None if none."""
        retired, self._retired = self._retired, []
        old = {path(table.entry.number) for table in retired for path in (table_path, tombstones_path)}
        return partial(_remove_existing, self._files, old) if retired else None

    # -- Open tables

    @property
    def _current(self) -> dict[int, SortedTable]:
        assert self._open is not None, "the tables are not open"
        return self._open

    def _reserve(self, count: int) -> int:
        number = self._next_number
        self._next_number += count
        return number

    def _close_if_unused(self, table: SortedTable) -> None:
        if table not in self._pins:
            self._close(table)

    def _close(self, table: SortedTable) -> None:
        """Close a table that nothing reads any more."""
        self._lost_before += table.lost
        table.close()


def _paths(files: Files) -> list[str]:
    names = files.list(TIMERS_DIRECTORY)
    return [f"{TIMERS_DIRECTORY}/{name}" for name in names if name.endswith((".table", ".tombstones"))]


def _remove(files: Files, paths: Sequence[str]) -> None:
    for path in paths:
        files.remove(path)
    if paths:
        files.sync_directory(TIMERS_DIRECTORY)


def _remove_existing(files: Files, paths: Set[str]) -> None:
    _remove(files, [path for path in _paths(files) if path in paths])
