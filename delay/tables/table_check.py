"""`check_files`: whether the files of a table in a data directory are those that a manifest names."""

from duolog.delay.tables.sorted_table import SortedTable
from duolog.delay.tables.table_format import TableEntry
from duolog.delay.tables.tombstones import Tombstones, tombstones_path
from duolog.store.errors import Corruption
from duolog.store.files import ReadableFiles, read_whole


def check_files(files: ReadableFiles, entry: TableEntry) -> None:
    """Raise Corruption if a file of a table is missing, or if its footer, an index or a tombstone is damaged.

    The blocks with the messages are not read. Blocks; raises OSError.
    """
    table = SortedTable(files, entry)
    try:
        table.check_indexes()
    finally:
        table.close()
    if entry.tombstone_bytes:
        path = tombstones_path(entry.number)
        try:
            content = read_whole(files, path)[: entry.tombstone_bytes]
        except FileNotFoundError as error:
            raise Corruption(f"{path}: named by the manifest, and not there") from error
        valid = Tombstones(entry.number, entry.count).load(content)
        if valid < entry.tombstone_bytes:
            raise Corruption(f"{path}: damaged, or missing, from byte {valid} of {entry.tombstone_bytes} on")
