"""The format of a sorted table: an immutable file of timers in due order, each with the frame that will be delivered.

    block ...         rows, then names and frames of these timers; about 64 KiB, so about 250 small messages
    block index       first due u64 | first address u64 | at u64 | ordinal u32 | count u32
                      | payload size u32 | rows crc u32 | payload crc u32
    topic index       topic u64 | block u32 | timers of this topic in the blocks before u32
    name index        hash of topic and name u64 | ordinal u32
    footer            magic u32 | version u32 | number u64 | count u64 | key of the first and of the last timer, 4 u64
                      | (at u64 | rows u32) of each index | crc u32                                         96 bytes

    row               as in `delay/rows.py`                                                             32 bytes

Timers are sorted by their key (due time, address). The `ordinal` of a timer is its number in this order. To find the
ordinal of a key or a due time, a reader bisects the block index and reads one block. The topic index has a row for each
block that has timers of a topic, and one row after the last block. So the timers of a topic that are due in a span of
time are counted with two look-ups, and by reading the rows of the first and the last block of the span. A scan of one
topic reads only blocks that have timers of the topic. The name index finds the timers with a sender's key. The indexes
are in pages with CRCs (`delay/tables/paged_index.py`) and are not kept in memory: opening a table reads only its
footer.

A CRC-32C covers every byte. Those of blocks are in the block index, those of indexes in their pages, and that of the
footer is in the footer and in the manifest's entry of the table. So damage is detected when the damaged bytes are read,
and another file under the table's name is detected when it is opened. A scan reports a damaged block and continues
after it. A table whose indexes are damaged is set aside when it is opened (`delay/tables/tables.py`).

A table of LevelDB (doc/table_format.md) has one index, by key. Here there are three, because timers are read by due
time, by topic and by name.
"""

from struct import Struct
from typing import Final, NamedTuple

from duolog.delay.rows import TOPIC_SHIFT, Timer, TimerKey, marks_of
from duolog.store.entry import new_tuple

TIMERS_DIRECTORY: Final = "timers"

BLOCK_BYTES: Final = 64 << 10
BLOCK_TIMERS_MAX: Final = 1024
TABLE_TIMERS_MAX: Final = (1 << 32) - 1  # Ordinals are 32 bits.

MAGIC: Final = 0x444C4754  # "DLGT"
VERSION: Final = 2
BLOCK: Final = Struct(">QQQIIIII")
TOPIC: Final = Struct(">QII")
TOPIC_BLOCK: Final = Struct(">QI")
NAME: Final = Struct(">QI")
FOOTER: Final = Struct(">IIQQQQQQQIQIQI")
FOOTER_SIZE: Final = FOOTER.size + 4


class TableTimer(NamedTuple):
    """One timer with its message. Timers are sorted by `key`, which is unique."""

    due_ms: int
    address: int  # The address of the pending entry in the log.
    queue_key: int  # The key of the queue to which the message is delivered.
    form: int  # The frame format.
    name: bytes  # The hash of topic and sender's key (`delay/names.py`), NAME_SIZE bytes; empty: there is no key.
    frame: bytes  # The frame as it is in the log.
    entity: int = 0  # The number of its entity (`delay/quota_entities.py`); 0: the timer counts for no quota.

    @property
    def key(self) -> TimerKey:
        return self.due_ms, self.address

    @property
    def topic(self) -> int:
        return self.queue_key >> TOPIC_SHIFT


def row_of(timer: TableTimer) -> Timer:
    """Return a timer without its message."""
    due_ms, address, queue_key, form, name, frame, entity = timer
    return new_tuple(Timer, (due_ms, address, queue_key, len(frame), marks_of(entity, len(name)), form))


class TableEntry(NamedTuple):
    """The entry of one table in a manifest. Records hold the values in this order, which must not change."""

    number: int  # The number in the file's name.
    size: int  # The size of the file in bytes.
    check: int  # The CRC of the footer.
    count: int  # type: ignore[assignment]  # The number of timers. This field hides tuple.count.
    start: int = 0  # The timers before this ordinal are deleted, whatever the tombstones say.
    tombstone_bytes: int = 0  # The valid bytes of the tombstone file that an earlier version wrote.


class BlockEntry(NamedTuple):
    """One row of the block index."""

    due_ms: int
    address: int
    at: int
    ordinal: int
    count: int  # type: ignore[assignment]  # This field hides tuple.count.
    payload_size: int
    rows_crc: int
    payload_crc: int


class TableFile(NamedTuple):
    """A file of a table, and how many of its first bytes belong to the table."""

    path: str
    size: int


def table_path(number: int) -> str:
    return f"{TIMERS_DIRECTORY}/{number:010d}.table"


def tombstones_path(number: int) -> str:
    return f"{TIMERS_DIRECTORY}/{number:010d}.tombstones"


def files_of(entry: TableEntry) -> list[TableFile]:
    """Return the files of a table that a manifest names."""
    files = [TableFile(table_path(entry.number), entry.size)]
    if entry.tombstone_bytes:
        files.append(TableFile(tombstones_path(entry.number), entry.tombstone_bytes))
    return files


def first_number(epoch: int) -> int:
    """Return the least number of a table that the owner of a stream writes in its epoch.

    No two owners of a stream have one epoch. So no table of a deposed owner has the number of another table.
    """
    return epoch << 32
