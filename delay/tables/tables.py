"""The sorted tables that count: the manifest, and how it changes.

    timers/0000000007.table            immutable (delay/tables/table_format.py)
    timers/0000000007.tombstones       grows (delay/tables/tombstones.py)

The *manifest* says which files count, and how much of them: a tuple of `TableEntry`, one record in the log. Every
change takes the same three steps, so that a crash leaves the old set of tables or the new one:

    1. in a worker    write the files and make them durable     TableWriter.finish, TombstoneWrite.run, Compaction.run
    2. in the loop    commit the new manifest to the log        added, with_tombstones, compacted, with_starts; `switch`
    3. in a worker    when that is durable, remove old files    removal

`switch` is what replaying a manifest does, live and at recovery. During recovery it only remembers the last manifest;
`open` then opens its files and removes all others: tables that no manifest named, tombstones that none counted, and
files whose removal was cut short. The log still holds what the first two said.

Reads go through a `TablesView`, which keeps the files of its moment open: a thread may read while the loop switches.
Compactions keep tables few and drop what is deleted: eight tables of about one size become one, and a table of which
half is deleted is written anew. Large results are cut by due time.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from duolog.delay.tables.compaction import TABLE_BYTES, Compaction
from duolog.delay.tables.sorted_table import RowRef, SortedTable
from duolog.delay.tables.table_format import TableEntry, table_path
from duolog.delay.tables.table_writer import TableWriter
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tables.tombstones import TIMERS_DIRECTORY, TombstoneWrite, tombstones_path
from duolog.store.errors import Corruption
from duolog.store.files import Files

COMPACTION_WIDTH = 8  # Tables of about one size that are compacted into one.
DELETED_SHARE = 0.5  # Of a table; above it the table is written anew.

SET_ASIDE = ".damaged"  # Behind the name of a file that could not be opened.

Manifest = tuple[TableEntry, ...]

log = logging.getLogger("delay")


def _go_on() -> None:
    pass


class Tables:
    """The set that counts now. Belongs to the loop; what `run`s belongs into a worker, one at a time.

    The class has more than 20 methods, because reading, compacting and switching share which files are open and in use.
    """

    def __init__(self, files: Files) -> None:
        self.manifest: Manifest = ()
        self.pause: Callable[[], object] = _go_on  # lets other threads go on; called with each block that is written
        self._files = files
        self._open: dict[int, SortedTable] | None = None  # None: the log is still being replayed
        self._pins: dict[SortedTable, int] = {}
        self._ready: dict[int, SortedTable] = {}  # for the next manifest: open already, for to switch must not fail
        self._retired: list[SortedTable] = []  # their files are still there
        self._next_number = 1
        self._compaction: Compaction | None = None
        self.lost = 0  # timers of tables that were set aside at the start
        self.is_repaired = False

    # -- The manifest

    def switch(self, manifest: Manifest) -> None:
        """Let exactly these tables count: replaying a manifest does the same."""
        self.manifest = manifest
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

    def open(self) -> None:
        """Open what the last manifest names and remove the rest. Blocks; raises OSError.

        Damage does not refuse a start, it costs what it held: a table that is missing or cannot be read is set aside
        under another name, `lost` counts its timers, and the manifest is one without it. Of damaged tombstones those
        before the damage are kept. `is_repaired` says that the manifest should be committed anew.
        """
        assert self._open is None, "the tables are open"
        self._files.make_directory(TIMERS_DIRECTORY)
        self._files.sync_directory(".")
        named = {table_path(entry.number) for entry in self.manifest}
        named |= {tombstones_path(entry.number) for entry in self.manifest if entry.tombstone_bytes}
        _remove(self._files, [path for path in _paths(self._files) if path not in named])
        self._next_number = 1 + max((entry.number for entry in self.manifest), default=0)
        self._open = {}
        for entry in self.manifest:
            try:
                self._open[entry.number] = self._open_table(entry)
            except Corruption as error:
                self._set_aside(entry, error)
        opened = tuple(table.entry for table in self._open.values())
        self.is_repaired, self.manifest = opened != self.manifest, opened

    def _open_table(self, entry: TableEntry) -> SortedTable:
        table = SortedTable(self._files, entry)
        try:
            table.check_indexes()
            if entry.tombstone_bytes:
                self._load_tombstones(table)
        except BaseException:
            table.close()
            raise
        return table

    def _load_tombstones(self, table: SortedTable) -> None:
        """Read the tombstones that count, and cut off what follows them."""
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
        self.lost += timers
        log.error("delayed messages are lost, their table is set aside: %s timers=%d", error, timers)
        names = set(_paths(self._files))
        for path in (table_path(entry.number), tombstones_path(entry.number)):
            if path in names:
                self._files.rename(path, path + SET_ASIDE)

    def close(self) -> None:
        """Close all files, at the end of the run."""
        for table in (*self._counting.values(), *(table for table in self._retired if table in self._pins)):
            table.close()
        self._open, self._retired, self._pins = {}, [], {}

    # -- Looking

    def view(self) -> TablesView:
        """Keep the present tables open for reads, in the loop or in a thread, until `TablesView.close`."""
        tables = tuple(self._counting.values())
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
                if self._counting.get(table.entry.number) is not table:
                    table.close()

    def delete(self, table: SortedTable, ref: RowRef) -> None:
        """Add a tombstone; the log must keep saying that the timer is deleted until a manifest counts the tombstone."""
        assert self.has(table), f"{table.path} counts no more: find the timer again"
        if self._compaction is not None and table in self._compaction.inputs:
            self._compaction.deleted_late.append(ref.key)
        table.tombstones.add(ref.ordinal, ref.topic)

    def has(self, table: SortedTable) -> bool:
        """Whether a table counts still; a view may have one that does not."""
        return self._counting.get(table.entry.number) is table

    @property
    def compacting(self) -> frozenset[int]:
        """The numbers of the tables that are being compacted."""
        return (
            frozenset()
            if self._compaction is None
            else frozenset(table.entry.number for table in self._compaction.inputs)
        )

    # -- Changing: what to run, and the manifest to commit after it

    def new_writer(self) -> Callable[[], TableWriter]:
        """Give a table its number; a worker begins it. It counts once the manifest of `added` is committed."""
        number = self._reserve(1)
        return lambda: TableWriter(self._files, number, pause=self.pause)

    def added(self, tables: Iterable[SortedTable]) -> Manifest:
        self._ready = {table.entry.number: table for table in tables}
        return (*self.manifest, *(table.entry for table in self._ready.values()))

    def tombstone_writes(self) -> list[TombstoneWrite]:
        """Take all tombstones that files do not have yet; run each, then commit `with_tombstones`."""
        return [
            TombstoneWrite(self._files, table.tombstones, table.entry.tombstone_bytes)
            for table in self._counting.values()
            if table.tombstones.unwritten
        ]

    def with_tombstones(self, writes: Sequence[TombstoneWrite]) -> Manifest:
        ends = {write.number: write.end for write in writes}
        return tuple(
            entry._replace(tombstone_bytes=ends.get(entry.number, entry.tombstone_bytes)) for entry in self.manifest
        )

    def with_starts(self, starts: Mapping[int, int], manifest: Manifest | None = None) -> Manifest:
        """All timers before these ordinals are deleted (`TablesView.lower`); tables without others are left out.

        Tables that are being compacted stay as they are. `manifest` is that of a change that is committed together.
        """
        compacting = self.compacting
        result = []
        for entry in self.manifest if manifest is None else manifest:
            if entry.number not in compacting:
                entry = entry._replace(start=max(entry.start, starts.get(entry.number, 0)))
                if entry.count == entry.start + self._counting[entry.number].tombstones.count(entry.start, entry.count):
                    continue
            result.append(entry)
        return tuple(result)

    def compact(self, inputs: Sequence[SortedTable]) -> Compaction:
        """Begin to write these anew as one; run it, then commit `compacted`. One compaction at a time."""
        assert self._compaction is None, "a compaction is under way"
        size = sum(table.entry.size for table in inputs)
        self._compaction = Compaction(self._files, inputs, self._reserve(size // TABLE_BYTES + 1), self.pause)
        self._pin(inputs)
        return self._compaction

    def compaction_wanted(self) -> list[SortedTable]:
        """Name the tables that are worth compacting now; mostly none."""
        if self._compaction is not None:
            return []
        classes: dict[int, list[SortedTable]] = {}
        for table in self._counting.values():
            entry = table.entry
            if table.tombstones.total > entry.count * DELETED_SHARE:
                return [table]
            if entry.size < TABLE_BYTES // 2:
                classes.setdefault(entry.size.bit_length() // 2, []).append(table)
        enough = (alike[: 2 * COMPACTION_WIDTH] for alike in classes.values() if len(alike) >= COMPACTION_WIDTH)
        return next(enough, [])

    def compacted(self) -> Manifest:
        """The compaction has run: name its results instead of its inputs.

        Reads where the timers lie that were deleted meanwhile, so few of them should be left. Raises OSError and
        Corruption, and then the compaction is to be abandoned.
        """
        compaction = self._compaction
        assert compaction is not None, "no compaction is under way"
        compaction.delete_late()
        self.abandon_compaction()
        inputs = {table.entry.number for table in compaction.inputs}
        return tuple(entry for entry in self.added(compaction.outputs) if entry.number not in inputs)

    def abandon_compaction(self) -> None:
        """Forget the compaction: it has failed, or its results are about to count."""
        assert self._compaction is not None, "no compaction is under way"
        self.unpin(self._compaction.inputs)
        self._compaction = None

    def discard(self, tables: Sequence[SortedTable]) -> Callable[[], None]:
        """The manifest that names these was not committed: close them; returns what removes them, in a worker."""
        self._ready = {}
        for table in tables:
            table.close()
        return partial(_remove, self._files, [table.path for table in tables])

    def removal(self) -> "Removal | None":
        """What may be removed once the present manifest is durable in the log."""
        retired, self._retired = self._retired, []
        return Removal(self._files, retired) if retired else None

    # -- Inside

    @property
    def _counting(self) -> dict[int, SortedTable]:
        assert self._open is not None, "the tables are not open"
        return self._open

    def _reserve(self, count: int) -> int:
        number = self._next_number
        self._next_number += count
        return number

    def _close_if_unused(self, table: SortedTable) -> None:
        if table not in self._pins:
            table.close()


class Removal:
    """Removes the files of tables that count no more; `run` in a worker."""

    def __init__(self, files: Files, tables: Sequence[SortedTable]) -> None:
        self._files = files
        self._paths = {path(table.entry.number) for table in tables for path in (table_path, tombstones_path)}

    def run(self) -> None:
        _remove(self._files, [path for path in _paths(self._files) if path in self._paths])


def _paths(files: Files) -> list[str]:
    names = files.list(TIMERS_DIRECTORY)
    return [f"{TIMERS_DIRECTORY}/{name}" for name in names if name.endswith((".table", ".tombstones"))]


def _remove(files: Files, paths: Sequence[str]) -> None:
    for path in paths:
        files.remove(path)
    if paths:
        files.sync_directory(TIMERS_DIRECTORY)
