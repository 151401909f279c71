"""The files of sorted tables in a data directory: they are opened, checked, set aside, removed. All functions block."""

from collections.abc import Callable, Iterable

from duolog.delay.tables.sorted_table import SortedTable
from duolog.delay.tables.table_format import TableEntry, table_path
from duolog.delay.tables.tombstones import TIMERS_DIRECTORY, tombstones_path
from duolog.store.errors import Corruption
from duolog.store.files import Files, ReadableFiles, read_whole

SET_ASIDE = ".damaged"  # The suffix of the name of a file that could not be opened.


def open_table(files: ReadableFiles, entry: TableEntry) -> SortedTable:
    """Open a table with its tombstones, and check its indexes. Raises Corruption and OSError.

    The entry of the result has fewer `tombstone_bytes` if the tombstone file is damaged or missing from there on.
    """
    table = SortedTable(files, entry)
    try:
        table.check_indexes()
        if entry.tombstone_bytes:
            valid = table.tombstones.load(_tombstone_bytes(files, entry))
            table.entry = entry._replace(tombstone_bytes=valid)
    except BaseException:
        table.close()
        raise
    return table


def _tombstone_bytes(files: ReadableFiles, entry: TableEntry) -> bytes:
    try:
        return read_whole(files, tombstones_path(entry.number))[: entry.tombstone_bytes]
    except FileNotFoundError:
        return b""


def check_files(files: ReadableFiles, entry: TableEntry) -> None:
    """Raise Corruption if a file of a table is missing, or if its footer, an index or a tombstone is damaged.

    The blocks with the messages are not read. Raises OSError, too.
    """
    table = open_table(files, entry)
    table.close()
    if table.entry != entry:
        path, valid = tombstones_path(entry.number), table.entry.tombstone_bytes
        if path.rpartition("/")[2] not in files.list(TIMERS_DIRECTORY):
            raise Corruption(f"{path}: named by the manifest, and not there")
        raise Corruption(f"{path}: damaged, or missing, from byte {valid} of {entry.tombstone_bytes} on")


def set_aside(files: Files, number: int) -> None:
    """Keep the files of a table that cannot be opened under other names, for an operator to examine."""
    for path in _existing(files, {table_path(number), tombstones_path(number)}.__contains__):
        files.rename(path, path + SET_ASIDE)


def remove_tables(files: Files, numbers: Iterable[int]) -> None:
    """Remove the files of tables that no manifest names now or will name, as far as they exist."""
    paths = {path(number) for number in numbers for path in (table_path, tombstones_path)}
    _remove(files, _existing(files, paths.__contains__))


def remove_others(files: Files, paths: Iterable[str]) -> None:
    """Remove all files of tables except these."""
    kept = {*paths}
    _remove(files, _existing(files, lambda path: path not in kept))


def _existing(files: Files, is_wanted: Callable[[str], bool]) -> list[str]:
    names = files.list(TIMERS_DIRECTORY)
    paths = [f"{TIMERS_DIRECTORY}/{name}" for name in names if name.endswith((".table", ".tombstones"))]
    return [path for path in paths if is_wanted(path)]


def _remove(files: Files, paths: list[str]) -> None:
    for path in paths:
        files.remove(path)
    if paths:
        files.sync_directory(TIMERS_DIRECTORY)
