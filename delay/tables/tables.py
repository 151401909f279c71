"""The class Tables: the manifest, which names the current sorted tables, and its changes.

    timers/0000000007.table            immutable (delay/tables/table_format.py)

The *manifest* is a tuple of `TableEntry`, which one record of the log has. A table is *current* if the last manifest
names it. Every change of the manifest takes the same three steps, so a crash leaves either the old tables or the new
ones:

    1. in a worker    write the files and make them durable     TableWriter.finish
    2. in the loop    commit the new manifest to the log        added, with_deletions; `switch`
    3. in a worker    remove old files once it is durable       remove

The tables of a stream have copies in the object store. A new table is copied between the steps 1 and 2 (`TableCopies`
in delay/tree/jobs.py).

`switch` replays a manifest, and `add_tombstones` its tombstones, live and at recovery. During recovery they only store
the last manifest and all tombstones of its tables. Then `open` opens the files that this manifest names, and removes
all others: tables that no manifest named, of which the log still has the timers, and tables whose removal was
interrupted.

A `TablesView` keeps the tables open that were current when it was made, so a thread may read them while the loop
switches to other tables (delay/tables/references.py).
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Final

from duolog.delay.tables.references import References
from duolog.delay.tables.sorted_table import RowRef, SortedTable
from duolog.delay.tables.table_files import open_table, remove_files, set_aside
from duolog.delay.tables.table_format import TIMERS_DIRECTORY, TableEntry, files_of, tombstones_path
from duolog.delay.tables.table_writer import TableWriter
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tables.tombstone_files import read_tombstones
from duolog.delay.tables.tombstones import TombstoneRow, Tombstones
from duolog.store.errors import Corruption
from duolog.store.files import Files

ROWS_IN_RECORD: Final = 64  # Of a snapshot.
ORDINALS_IN_ROW: Final = 256

TableManifest = tuple[TableEntry, ...]

log = logging.getLogger("delay")


class Tables:
    """The current tables, used in the loop. A worker calls `remove`, and the function that `new_writer` returns."""

    def __init__(self, files: Files) -> None:
        self.manifest: TableManifest = ()
        self._tombstones: dict[int, Tombstones] = {}  # By number, for each table of the manifest.
        # Called after each block that a worker writes, so that other threads run.
        self.pause: Callable[[], object] | None = None
        self.is_repaired = False
        self._files = files
        self.is_open = False  # False while the log is recovered.
        self._tables: dict[int, SortedTable] = {}  # The current tables by number, once they are open.
        self._references = References()
        # Tables of the next manifest, by number. They are open already, because `switch` must not fail.
        self._ready: dict[int, SortedTable] = {}
        self.changes = 0  # How often a table has become current, or no longer is.
        self._next_number = 1
        self._set_aside = 0  # The number of timers in tables that were set aside at the start.

    # -- The manifest

    def switch(self, manifest: TableManifest) -> None:
        """Replay a manifest: make exactly the tables that it names current."""
        self.manifest = manifest
        old = self._tombstones
        self._tombstones = {entry.number: old.get(entry.number) or Tombstones(entry.count) for entry in manifest}
        if not self.is_open:
            return
        before, self._tables = self._tables, {}
        for entry in manifest:
            table = before.pop(entry.number, None)
            if table is None:
                self._add(self._ready.pop(entry.number))
            else:
                table.entry = entry
                self._tables[entry.number] = table
        self.changes += len(before)
        self._references.drop(before.values())

    def _add(self, table: SortedTable) -> None:
        """Make an open table current."""
        table.tombstones = self._tombstones[table.entry.number]
        self._tables[table.entry.number] = table
        self._references.add([table])
        self.changes += 1

    def add_tombstones(self, rows: Iterable[TombstoneRow]) -> None:
        """Replay tombstones. Those of tables that are not current are ignored."""
        for number, topic, ordinals in rows:
            if (tombstones := self._tombstones.get(number)) is not None:
                for ordinal in ordinals:
                    tombstones.add(ordinal, topic)

    def all_tombstones(self) -> Iterator[list[TombstoneRow]]:
        """Return the tombstones of this moment in parts, for a snapshot."""
        copied = [(number, *each) for number, of in self._tombstones.items() for each in of.by_topic()]
        rows = (
            (number, topic, [*ordinals[at : at + ORDINALS_IN_ROW]])
            for number, topic, ordinals in copied
            for at in range(0, len(ordinals), ORDINALS_IN_ROW)
        )
        return iter(lambda: [*islice(rows, ROWS_IN_RECORD)], [])

    def open(self, first_number: int = 1, *, may_lose: bool = True) -> None:
        """Open the files that the last manifest names, and remove all others. Blocks; raises OSError.

        The broker starts although files are damaged. A table that is missing or cannot be read is renamed and left out
        of the manifest, and `lost` counts its timers. `is_repaired` says whether the manifest must be committed: it has
        changed, or files of an earlier version had tombstones. If not `may_lose`, Corruption is raised instead, because
        the object store has the table. New tables have numbers from `first_number` on.
        """
        assert not self.is_open, "the tables are open"
        self._files.make_directory(TIMERS_DIRECTORY)
        self._files.sync_directory(".")
        named = {file.path for entry in self.manifest for file in files_of(entry)}
        remove_files(self._files, lambda path: path not in named)
        self._next_number = max(first_number, 1 + max((entry.number for entry in self.manifest), default=0))
        for entry in self.manifest:
            try:
                table = open_table(self._files, entry)
                self._add(table)
                self._read_tombstones(table)
            except Corruption as error:
                if not may_lose:
                    raise
                timers = entry.count - entry.start
                log.error("delayed messages are lost, their table is set aside: %s timers=%d", error, timers)
                self._set_aside += timers
                set_aside(self._files, entry.number)
        opened = tuple(table.entry for table in self._tables.values())
        self.is_repaired = opened != self.manifest or any(entry.tombstone_bytes for entry in opened)
        self.is_open, self.manifest = True, opened

    def _read_tombstones(self, table: SortedTable) -> None:
        """Add the tombstones that an earlier version wrote to a file."""
        rows, valid = read_tombstones(self._files, table.entry)
        for ordinal, topic in rows:
            table.tombstones.add(ordinal, topic)
        if valid < table.entry.tombstone_bytes:
            log.error(
                "cancelled delayed messages may be delivered: %s is damaged, or missing, from byte %d of %d on",
                tombstones_path(table.entry.number), valid, table.entry.tombstone_bytes,
            )  # fmt: skip

    def close(self) -> None:
        """Close all files, at the end of the run."""
        self._references.close()
        self._tables = {}

    # -- Reading

    @property
    def current(self) -> Collection[SortedTable]:
        assert self.is_open, "the tables are not open"
        return self._tables.values()

    @property
    def lost(self) -> int:
        """The number of pending timers that damage has lost since the start, as far as reads have found it."""
        return self._set_aside + self._references.lost

    def view(self, tables: Iterable[SortedTable] | None = None) -> TablesView:
        """Return a view of the current tables, or of some of them. They stay open until `TablesView.close`."""
        viewed = tuple(self.current if tables is None else tables)
        self._references.add(viewed)
        return TablesView(viewed, self._references.drop)

    def has(self, table: SortedTable) -> bool:
        """Return whether a table is still current. A view may have tables that are not."""
        return self._tables.get(table.entry.number) is table

    # -- Changes

    def delete(self, ref: RowRef) -> None:
        """Add a tombstone that the log does not have yet, but the deletion."""
        table = ref.table
        assert self.has(table), f"{table.path} is no longer current: find the timer again"
        if table.deleted_meanwhile is not None:
            table.deleted_meanwhile[ref.key] = None
        table.tombstones.add(ref.ordinal, ref.topic)

    def with_deletions(self, starts: Mapping[int, int]) -> TableManifest:
        """Return the manifest in which all timers before the ordinals `starts`, by table number, are deleted.

        The starts of tables that are being compacted stay. Tables in which no timer is left are left out.
        """
        result = []
        for number, table in self._tables.items():
            entry = table.entry
            if table.deleted_meanwhile is None:
                entry = entry._replace(start=max(entry.start, starts.get(number, 0)))
                if entry.count == entry.start + table.tombstones.count(entry.start, entry.count):
                    continue
            result.append(entry)
        return tuple(result)

    def new_writer(self, tables_max: int = 1) -> Callable[[], TableWriter]:
        """Return a function with which a worker begins the file of a new table, `tables_max` times at most.

        The tables become current when the manifest that `added` returns is committed.
        """
        numbers = count(self._next_number)
        self._next_number += tables_max
        return lambda: TableWriter(self._files, next(numbers), pause=self.pause)

    def added(self, tables: Sequence[SortedTable], replaced: Iterable[SortedTable] = ()) -> TableManifest:
        """Return the manifest with these new tables, and without those that they replace."""
        self._ready = {table.entry.number: table for table in tables}
        old = {table.entry.number for table in replaced}
        kept = [entry for entry in self.manifest if entry.number not in old]
        return (*kept, *(table.entry for table in tables))

    def remove(self, entries: Iterable[TableEntry]) -> None:
        """Remove the files of tables that are not current. Blocks; raises OSError."""
        remove_files(self._files, {file.path for entry in entries for file in files_of(entry)}.__contains__)
