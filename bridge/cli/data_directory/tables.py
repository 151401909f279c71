"""Checks sorted tables of delayed messages for `duolog log verify`: those that the last manifest in the log names."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from duolog.bridge.records import codec
from duolog.bridge.records.timers import TimerTablesChanged
from duolog.delay.tables.sorted_table import SortedTable
from duolog.delay.tables.table_format import TableEntry, TableFile, files_of, table_path
from duolog.store.errors import Corruption
from duolog.store.files import ReadableFiles


class DamagedTable(NamedTuple):
    """A table with damage; `damaged_places` counts its damaged blocks and pages, `reason` is that of the first."""

    path: str
    damaged_places: int
    reason: str


class ManifestReader:
    """Finds the last manifest among state records, which are passed in the order of the log."""

    def __init__(self) -> None:
        self.tables: Sequence[TableEntry] = ()

    @property
    def named(self) -> list[TableFile]:
        """The files that the manifest names."""
        return [file for entry in self.tables for file in files_of(entry)]

    def note(self, payload: bytes) -> None:
        """Take a state record."""
        if codec.tag_of(payload) != TimerTablesChanged.__struct_config__.tag:
            return
        try:
            record = codec.decode(payload)
        except codec.Undecodable:
            return
        assert isinstance(record, TimerTablesChanged)
        self.tables = record.manifest


def check_tables(
    files: ReadableFiles, tables: Sequence[TableEntry], note_bytes: Callable[[int], None], *, may_lack: bool
) -> list[DamagedTable]:
    """Read these tables and return the damaged ones.

    `may_lack` says that a missing table is no damage: a running broker may have removed it meanwhile, and a copy of a
    stream may not have downloaded it yet.
    """
    damaged: list[DamagedTable] = []
    for entry in tables:
        path = table_path(entry.number)
        if may_lack and path.rpartition("/")[2] not in files.list("timers"):
            continue
        try:
            table = SortedTable(files, entry)
        except Corruption as error:
            damaged.append(DamagedTable(path, 1, str(error)))
            continue
        try:
            reasons = list(_damage(table, note_bytes))
        finally:
            table.close()
        if reasons:
            damaged.append(DamagedTable(path, len(reasons), reasons[0]))
    return damaged


def _damage(table: SortedTable, note_bytes: Callable[[int], None]) -> Iterator[str]:
    for size, reason in table.check():
        note_bytes(size)
        if reason:
            yield reason
