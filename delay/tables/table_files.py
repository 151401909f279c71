"""The files of sorted tables in a data directory: they are opened, checked, set aside, removed. All functions block."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from duolog.delay.tables.sorted_table import SortedTable
from duolog.delay.tables.table_format import TIMERS_DIRECTORY, TableEntry, table_path, tombstones_path
from duolog.delay.tables.tombstone_files import read_tombstones
from duolog.store.errors import Corruption
from duolog.store.files import Files, ReadableFiles

SUFFIXES: Final = (".table", ".tombstones")
SET_ASIDE: Final = ".damaged"  # The suffix of the name of a file that could not be opened.


def open_table(files: ReadableFiles, entry: TableEntry) -> SortedTable:
    """Open a table and check its indexes. Raises Corruption and OSError."""
    table = SortedTable(files, entry)
    try:
        table.check_indexes()
    except BaseException:
        table.close()
        raise
    return table


def check_files(files: ReadableFiles, entry: TableEntry) -> None:
    """Raise Corruption if a file of a table is missing, or if its footer, an index or a tombstone is damaged.

    The blocks with the messages are not read. Raises OSError, too.
    """
    open_table(files, entry).close()
    _, valid = read_tombstones(files, entry)
    if valid < entry.tombstone_bytes:
        path = tombstones_path(entry.number)
        raise Corruption(f"{path}: damaged, or missing, from byte {valid} of {entry.tombstone_bytes} on")


def set_aside(files: Files, number: int) -> None:
    """Keep the file of a table that cannot be opened under another name, for an operator to examine."""
    path = table_path(number)
    with suppress(FileNotFoundError):
        files.rename(path, path + SET_ASIDE)


def remove_files(files: Files, is_removed: Callable[[str], bool]) -> None:
    """Remove the files of tables whose paths `is_removed` accepts. No manifest names them now or will name them."""
    paths = [f"{TIMERS_DIRECTORY}/{name}" for name in files.list(TIMERS_DIRECTORY) if name.endswith(SUFFIXES)]
    removed = [path for path in paths if is_removed(path)]
    for path in removed:
        files.remove(path)
    if removed:
        files.sync_directory(TIMERS_DIRECTORY)
