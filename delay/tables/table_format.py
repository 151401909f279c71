"""The format of a sorted table: an immutable file of timers in due order, each with the frame that will be delivered.

    block ...         rows, then names and frames of these timers; about 64 KiB, so about 250 small messages
    block index       first due u64 | first address u64 | at u64 | ordinal u32 | count u32
                      | payload size u32 | rows crc u32 | payload crc u32
    topic index       topic u64 | block u32 | timers of this topic in the blocks before u32
    name index        hash of topic and name u64 | ordinal u32
    footer            magic u32 | version u32 | number u64 | count u64 | key of the first and of the last timer, 4 u64
                      | (at u64 | rows u32) of each index | crc u32                                         96 bytes

    row               as in `delay/rows.py`                                                             32 bytes

Timers are sorted by their key (due time, address), and `ordinal` counts them. One bisection of the block index and
one block lead from a key, or a moment, to its ordinal. The topic index has a row for each block in which a topic
occurs, and one behind the last block. So two look-ups count a topic's timers between two moments, but for those in
the two blocks at the edges, of which only the rows are read; and a scan of one topic reads only blocks that have
timers of it. The name index leads to the timers of a sender's own key. Indexes lie in pages with CRCs
(`delay/tables/paged_index.py`) and are not kept in memory: opening a table reads its footer alone.

Every byte is under a CRC-32C: blocks by the block index, indexes by their pages, the footer by itself and by the
table's entry in the manifest. So a damaged byte is reported when it is read, and another file under the table's name
at once. A scan reports a damaged block and goes on behind it; a table without its indexes is set aside when it is
opened (`delay/tables/tables.py`).

Compare the tables of LevelDB (doc/table_format.md): their one index by key is three here, since timers are read by
moment, by topic and by name.
"""

from struct import Struct
from typing import Final, NamedTuple

from duolog.delay.rows import TOPIC_SHIFT, Timer, TimerKey
from duolog.delay.tables.tombstones import TIMERS_DIRECTORY
from duolog.store.entry import new_tuple

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
    """One message and when it is to be delivered. They sort by `key`, which no two have in common."""

    due_ms: int
    address: int  # Of the pending entry in the log.
    queue_key: int  # Of the queue to which the message goes.
    form: int  # Of the frame.
    name: bytes  # The sender's own key; empty: none.
    frame: bytes  # As it lies in the log.

    @property
    def key(self) -> TimerKey:
        return self.due_ms, self.address

    @property
    def topic(self) -> int:
        return self.queue_key >> TOPIC_SHIFT


def row_of(timer: TableTimer) -> Timer:
    """Return a timer without its message."""
    due_ms, address, queue_key, form, name, frame = timer
    return new_tuple(Timer, (due_ms, address, queue_key, len(frame), len(name), form))


class TableEntry(NamedTuple):
    """What a manifest says of one table; the values that a record holds, in this order forever."""

    number: int  # Of the file.
    size: int
    check: int  # CRC of the footer.
    count: int  # type: ignore[assignment]  # hides tuple.count
    start: int = 0  # The timers before this ordinal are deleted, whatever the tombstones say.
    tombstone_bytes: int = 0  # How much of the file of tombstones counts.


class BlockEntry(NamedTuple):
    """One row of the block index."""

    due_ms: int
    address: int
    at: int
    ordinal: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    payload_size: int
    rows_crc: int
    payload_crc: int


def table_path(number: int) -> str:
    return f"{TIMERS_DIRECTORY}/{number:010d}.table"
