"""A bucket: an immutable file of far timers in due order, each with the frame that will be delivered.

    block ...         rows, then names and frames of these timers; about 64 KiB, so about 250 small messages
    block table       first due u64 | first address u64 | at u64 | ordinal u32 | count u32
                      | payload size u32 | rows crc u32 | payload crc u32
    topic table       topic u64 | block u32 | timers of this topic in the blocks before u32
    name table        hash of topic and name u64 | ordinal u32
    footer            magic u32 | version u32 | number u64 | count u64 | id of the first and of the last timer, 4 u64
                      | (at u64 | rows u32) of each table | crc u32                                         96 bytes

    row               due u64 | address u64 | queue key u64 | frame size u32 | name size u16 | form u8 | 0  32 bytes

Timers are sorted by (due, address), which is a timer's id, and `ordinal` counts them. So one bisection of the block
table and one block lead from an id, or a moment, to its place. The topic table has a row wherever a topic occurs in a
block, and one behind the last block. So two look-ups give a topic's timers between two moments, but for those in the
two blocks at the edges, of which the rows alone are read; and a list of them reads no block in vain. The name table
leads to the timers of a sender's own key. Tables lie in pages with CRCs (`delay/table.py`), and are not kept in memory:
opening reads the footer alone.

Every byte is under a CRC-32C: blocks by the block table, tables by their pages, the footer by itself and by the
bucket's entry in the manifest. So a damaged byte is reported when it is read, and another file under the name at once.
Damage costs what it held: a scan reports a damaged block and goes on behind it; without its tables a bucket is set
aside when it is opened (`delay/buckets.py`).

A bucket counts once a manifest in the log names it (`delay/buckets.py`); until then it is rubbish. What may not be
delivered from it any more stands beside it (`delay/tombstones.py`). Compare the tables of LevelDB
(doc/table_format.md): their one index, by key, is three here, since timers are asked for by moment, topic and name.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.delay.names import name_hash
from duolog.delay.table import Table, pages_of, rows_per_page
from duolog.delay.tombstones import TIMERS_DIRECTORY, Fate, Tombstones
from duolog.store.entry import new_tuple
from duolog.store.errors import Corruption
from duolog.store.files import Files

BLOCK_BYTES: Final = 64 << 10
BLOCK_TIMERS_MAX: Final = 1024
WRITE_BYTES: Final = 512 << 10  # at once: each write gives up the interpreter, and waits for it while the loop is busy
BUCKET_TIMERS_MAX: Final = (1 << 32) - 1  # ordinals are 32 bits
FOREVER_MS: Final = (1 << 64) - 1

_MAGIC: Final = 0x444C4754  # "DLGT"
_VERSION: Final = 1
_ROW: Final = Struct(">QQQIHBx")
_ROW_SIZE: Final = _ROW.size
_BLOCK: Final = Struct(">QQQIIIII")
_TOPIC: Final = Struct(">QII")
_NAME: Final = Struct(">QI")
_ID: Final = Struct(">QQ")
_TOPIC_BLOCK: Final = Struct(">QI")
_FOOTER: Final = Struct(">IIQQQQQQQIQIQI")
FOOTER_SIZE: Final = _FOOTER.size + 4
_NAME_PARTS_BITS: Final = 10  # names are sorted in so many parts, each of them in well under a millisecond

TimerId = tuple[int, int]  # due_ms, address

log = logging.getLogger("delay")


class FarTimer(NamedTuple):
    """One message and when it is to be delivered. They sort by `id`, which no two have in common."""

    due_ms: int
    address: int  # of the parked record in the log
    key: int  # of the queue it goes to
    form: int  # of the frame
    name: bytes  # the sender's own key; empty: none
    frame: bytes  # in the form to be delivered

    @property
    def id(self) -> TimerId:
        return self.due_ms, self.address

    @property
    def topic(self) -> int:
        return self.key >> 16


class BucketEntry(NamedTuple):
    """What a manifest says of one bucket; the values a record holds, in this order forever."""

    number: int  # of the file
    size: int
    check: int  # CRC of the footer
    count: int  # type: ignore[assignment]  # hides tuple.count
    start: int = 0  # the timers before this ordinal are finished, whatever the tombstones say
    tombstone_bytes: int = 0  # that count of the file beside it


class Found(NamedTuple):
    """Where a timer lies, and what has become of it."""

    bucket: "Bucket"
    ordinal: int
    timer: FarTimer

    @property
    def fate(self) -> Fate:
        """As of now: ask again in the loop before acting on it."""
        return self.bucket.fate(self.ordinal)


class Here(NamedTuple):
    """A timer that a bucket has, without its message."""

    id: TimerId
    ordinal: int
    topic: int


def bucket_path(number: int) -> str:
    return f"{TIMERS_DIRECTORY}/{number:010d}.bucket"


# -- Writing


class Writer:
    """Writes one bucket, timer by timer in order. May block at a block's end, and for long in `finish`."""

    def __init__(
        self,
        files: Files,
        number: int,
        *,
        block_timers_max: int = BLOCK_TIMERS_MAX,
        pause: Callable[[], object] | None = None,
    ) -> None:
        self.number, self.count, self.size = number, 0, 0
        self._pause = pause  # called behind each block
        self.first: TimerId = (0, 0)
        self.last: TimerId = (-1, -1)
        self._files, self._block_timers_max = files, block_timers_max
        self._path = bucket_path(number)
        self._file = files.open(self._path, create=True)
        self._is_open = True
        self._unwritten: list[bytes] = []  # of what `size` counts
        self._written = 0
        self._rows: list[bytes] = []
        self._payload: list[bytes] = []
        self._payload_size = 0
        self._topics: dict[int, int] = {}  # topic -> timers in this block
        self._blocks = bytearray()
        self._block_first: TimerId = (0, 0)
        self._postings: dict[int, bytearray] = {}  # topic -> its rows of the topic table
        self._totals: dict[int, int] = {}
        self._names: list[list[bytes]] = [[] for _ in range(1 << _NAME_PARTS_BITS)]

    def add(self, timer: FarTimer) -> None:
        """Take the next timer; its id must be above that of the one before."""
        due_ms, address, key, form, name, frame = timer
        place = (due_ms, address)
        assert place > self.last, f"timer {place} comes after {self.last}"
        self.last = place
        if not self._rows:
            self._block_first = place
        self._rows.append(_ROW.pack(due_ms, address, key, len(frame), len(name), form))
        topic = key >> 16
        self._topics[topic] = self._topics.get(topic, 0) + 1
        if name:
            self._payload.append(name)
            hashed = name_hash(topic, name)
            part = self._names[hashed >> 64 - _NAME_PARTS_BITS]
            part.append(_NAME.pack(hashed, self.count + len(self._rows) - 1))
        self._payload.append(frame)
        self._payload_size += len(name) + len(frame)
        if self._payload_size + len(self._rows) * _ROW_SIZE >= BLOCK_BYTES or len(self._rows) >= self._block_timers_max:
            self._end_block()

    def finish(self) -> "Bucket":
        """Write the tables, make file and name durable, and open it for looks."""
        if self._rows:
            self._end_block()
        assert 0 < self.count <= BUCKET_TIMERS_MAX, f"a bucket of {self.count} timers"
        tables = [
            self._write_table(_BLOCK.size, [self._blocks]),
            self._write_table(_TOPIC.size, self._topic_rows()),
            self._write_table(_NAME.size, (b"".join(sorted(part)) for part in self._names)),
        ]
        places = [value for table in tables for value in table]
        footer = _FOOTER.pack(_MAGIC, _VERSION, self.number, self.count, *self.first, *self.last, *places)
        check = crc32c(footer)
        self._write([footer, check.to_bytes(4, "big")])
        self._write_out()
        self._files.sync(self._file)
        self._close()
        self._files.sync_directory(TIMERS_DIRECTORY)
        return Bucket(self._files, BucketEntry(self.number, self.size, check, self.count))

    def abandon(self) -> None:
        """Close the file after a failure, in `finish` too, and remove it; the next start would do so otherwise."""
        self._close()
        self._files.remove(self._path)

    def _close(self) -> None:
        """Close the file once: another thread may have opened one under its number since."""
        if self._is_open:
            self._is_open = False
            self._files.close(self._file)

    def _end_block(self) -> None:
        rows, payload = b"".join(self._rows), b"".join(self._payload)
        number, count = len(self._blocks) // _BLOCK.size, len(self._rows)
        if not number:
            self.first = self._block_first
        self._blocks += _BLOCK.pack(
            *self._block_first, self.size, self.count, count, len(payload), crc32c(rows), crc32c(payload)
        )
        for topic, in_block in self._topics.items():
            before = self._totals.get(topic, 0)
            self._postings.setdefault(topic, bytearray()).extend(_TOPIC.pack(topic, number, before))
            self._totals[topic] = before + in_block
        self._write([rows, payload])
        self.count += count
        self._rows, self._payload, self._payload_size, self._topics = [], [], 0, {}
        if self._pause is not None:
            self._pause()

    def _topic_rows(self) -> Iterator[bytes]:
        block_count = len(self._blocks) // _BLOCK.size
        for topic in sorted(self._postings):
            yield bytes(self._postings[topic]) + _TOPIC.pack(topic, block_count, self._totals[topic])

    def _write_table(self, row_size: int, chunks: Iterable[bytes | bytearray]) -> tuple[int, int]:
        """Write rows that come sorted, in chunks of any size; returns where the table begins and how many they are."""
        at, count = self.size, 0
        page_rows = rows_per_page(row_size) * row_size
        rest = bytearray()
        for chunk in chunks:
            rest += chunk
            count += len(chunk) // row_size
            if len(rest) >= WRITE_BYTES:
                whole = len(rest) // page_rows * page_rows
                self._write(list(pages_of(rest[:whole], row_size)))
                del rest[:whole]
        self._write(list(pages_of(rest, row_size)))
        return at, count

    def _write(self, buffers: Sequence[bytes]) -> None:
        self._unwritten += buffers
        self.size += sum(map(len, buffers))
        if self.size - self._written >= WRITE_BYTES:
            self._write_out()

    def _write_out(self) -> None:
        self._files.write(self._file, self._unwritten, self._written)
        self._unwritten, self._written = [], self.size


# -- Reading


class _Block(NamedTuple):
    due_ms: int
    address: int
    at: int
    ordinal: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    payload_size: int
    rows_crc: int
    payload_crc: int


class Bucket:
    """One bucket open for reading, and its tombstones. Reading may block, and raises Corruption.

    Looks may go on in threads while the loop buries: a timer's fate is as of the moment when it is asked.
    """

    def __init__(self, files: Files, entry: BucketEntry) -> None:
        """Open what a manifest names: the footer is read, and the tombstones that count."""
        self.entry = entry
        self.path = bucket_path(entry.number)
        self.tombstones = Tombstones(entry.number, entry.count)
        self._files = files
        self._damaged: set[int] = set()  # blocks, that were reported
        try:
            self._file = files.open(self.path)
        except FileNotFoundError as error:
            raise Corruption(f"{self.path}: named by the manifest, and not there") from error
        try:
            self._read_footer()
        except BaseException:
            files.close(self._file)
            raise

    def _read_footer(self) -> None:
        entry, size = self.entry, self._files.size(self._file)
        if size != entry.size:
            raise Corruption(f"{self.path}: {size} bytes where the manifest says {entry.size}")
        footer = self._read(FOOTER_SIZE, size - FOOTER_SIZE)
        check = crc32c(footer[:-4])
        if check != entry.check or check != int.from_bytes(footer[-4:], "big"):
            raise Corruption(f"{self.path}: footer with CRC {check:#010x} where the manifest says {entry.check:#010x}")
        magic, version, number, count, first_ms, first, last_ms, last, *places = _FOOTER.unpack_from(footer)
        if (magic, version, number, count) != (_MAGIC, _VERSION, entry.number, entry.count):
            raise Corruption(f"{self.path}: version {version} of bucket {number} with {count} timers")
        self.first: TimerId = (first_ms, first)
        self.last: TimerId = (last_ms, last)
        self._blocks = Table(self._read, f"{self.path} blocks", places[0], _BLOCK.size, places[1])
        self._topics = Table(self._read, f"{self.path} topics", places[2], _TOPIC.size, places[3])
        self._names = Table(self._read, f"{self.path} names", places[4], _NAME.size, places[5])

    def close(self) -> None:
        self._files.close(self._file)

    def check_tables(self) -> None:
        """Read the tables of blocks and topics, without which nothing is found; raises Corruption."""
        self._blocks.check()
        self._topics.check()

    @property
    def pending(self) -> int:
        """How many are neither finished nor dead."""
        start, count = self.entry.start, self.entry.count
        return count - start - self.tombstones.count(start, count)

    def fate(self, ordinal: int) -> Fate:
        found = self.tombstones.fate(ordinal)
        return Fate.DELIVERED if ordinal < self.entry.start and found is Fate.PENDING else found

    # -- Places

    def lower(self, due_ms: int, address: int = 0) -> int:
        """Return the ordinal of the first timer that is not before this id; `count` if none is.

        In a damaged block nobody is found, so it is the first one there.
        """
        if (due_ms, address) <= self.first:
            return 0
        if (due_ms, address) > self.last:
            return self.entry.count
        key = _ID.pack(due_ms, address)
        number = self._blocks.lower(key) - 1
        block = self._block(number)
        rows = self._rows_or_none(number, block)
        return block.ordinal if rows is None else block.ordinal + _bisect_rows(rows, block.count, key)

    def find(self, id: TimerId) -> Found | None:
        """Return the timer of this id, dead or alive."""
        if not self.first <= id <= self.last:
            return None
        key = _ID.pack(*id)
        number = self._blocks.lower(key)
        if number == self._blocks.count or not self._blocks.row(number).startswith(key):
            number -= 1  # It is not the first of a block, so it is in the one before.
        block = self._block(number)
        rows, payload = self._load(number, block)
        within = _bisect_rows(rows, block.count, key)
        if within == block.count or not rows.startswith(key, within * _ROW_SIZE):
            return None
        return Found(self, block.ordinal + within, next(_timers(rows, payload, within, within + 1)))

    def places(self, ids: Iterable[TimerId]) -> Iterator[Here]:
        """Yield those of these ids that are here, dead or alive; the ids must rise. Reads rows, no messages."""
        rows, ordinal, count = b"", 0, 0
        behind: bytes = b""  # the first id that is not in these rows
        for id in ids:
            if not self.first <= id <= self.last:
                continue
            key = _ID.pack(*id)
            if key >= behind:
                number = self._blocks.lower(key)
                if number == self._blocks.count or not self._blocks.row(number).startswith(key):
                    number -= 1
                block = self._block(number)
                rows = self._rows_or_none(number, block) or b""
                ordinal, count = block.ordinal, len(rows) // _ROW_SIZE
                is_last = number + 1 == self._blocks.count
                behind = b"\xff" * (_ID.size + 1) if is_last else self._blocks.row(number + 1)[: _ID.size]
            within = _bisect_rows(rows, count, key)
            if within < count and rows.startswith(key, within * _ROW_SIZE):
                at = within * _ROW_SIZE + _ID.size
                yield Here(id, ordinal + within, int.from_bytes(rows[at : at + 8], "big") >> 16)

    # -- Timers in due order

    def scan(self, start: TimerId, until_ms: int, without: frozenset[int] = frozenset()) -> Iterator[FarTimer]:
        """Yield the pending timers from this id on, up to and not including what is due at `until_ms`.

        Topics may be left out: of blocks that have no others only the rows are read.
        """
        ordinal, until = max(self.lower(*start), self.entry.start), self.lower(until_ms)
        for number in range(self._block_of(ordinal), self._block_of(until - 1) + 1 if until > ordinal else 0):
            if not without:
                yield from self._scan_block(number, ordinal, until)
            elif any(
                key >> 16 not in without
                for _, _, key, _, _, _ in _ROW.iter_unpack(self._rows_or_none(number, self._block(number)) or b"")
            ):
                yield from (timer for timer in self._scan_block(number, ordinal, until) if timer.topic not in without)

    def of_topic(self, topic: int, start: TimerId, until_ms: int) -> Iterator[FarTimer]:
        """The same, of one topic."""
        ordinal, until = max(self.lower(*start), self.entry.start), self.lower(until_ms)
        if ordinal >= until:
            return
        last = self._block_of(until - 1)
        row = self._topics.lower(_TOPIC_BLOCK.pack(topic, self._block_of(ordinal)))
        while row < self._topics.count:
            of, number, _ = _TOPIC.unpack(self._topics.row(row))
            if of != topic or number > last:
                return
            yield from (timer for timer in self._scan_block(number, ordinal, until) if timer.key >> 16 == topic)
            row += 1

    def of_name(self, topic: int, name: bytes, start: TimerId, until_ms: int) -> Iterator[FarTimer]:
        """The same, of one topic and sender's key."""
        for found in self.named(topic, name):
            if start <= found.timer.id and found.timer.due_ms < until_ms and found.fate is Fate.PENDING:
                yield found.timer

    def named(self, topic: int, name: bytes) -> Iterator[Found]:
        """Yield all timers of this topic and sender's key in due order, dead or alive."""
        hashed = name_hash(topic, name).to_bytes(8, "big")
        row = self._names.lower_of_hash(hashed)
        while row < self._names.count and (found := self._names.row(row)).startswith(hashed):
            ordinal = int.from_bytes(found[8:12], "big")
            timer = self._timer(ordinal)
            if timer.name == name and timer.topic == topic:
                yield Found(self, ordinal, timer)
            row += 1

    # -- Numbers

    def pending_by_topic(self) -> Iterator[tuple[int, int]]:
        """Yield each topic that has timers here, and how many of them are pending."""
        start, count = self.entry.start, self.entry.count
        row = 0
        while row < self._topics.count:
            topic = _TOPIC.unpack(self._topics.row(row))[0]
            last = self._topics.lower(_TOPIC_BLOCK.pack(topic, self._blocks.count))
            total = _TOPIC.unpack(self._topics.row(last))[2]
            finished = self._of_topic_before(topic, start) if start else 0
            yield topic, total - finished - self.tombstones.count(start, count, topic)
            row = last + 1

    def pending_before(self, id: TimerId, topic: int | None = None) -> int:
        """Count the pending timers before this id, and all that are finished: differences of it are counts."""
        ordinal = max(self.lower(*id), self.entry.start)
        before = ordinal if topic is None else self._of_topic_before(topic, ordinal)
        return before - self.tombstones.count(0, ordinal, topic)

    def _of_topic_before(self, topic: int, ordinal: int) -> int:
        """Count the timers of a topic that are before this ordinal."""
        number = self._block_of(ordinal)
        row = self._topics.lower(_TOPIC_BLOCK.pack(topic, number))
        if row == self._topics.count:
            return 0
        of, found, before = _TOPIC.unpack(self._topics.row(row))
        if of != topic:
            return 0  # The row behind the last block would be the topic's, had it any timer here.
        if found == number < self._blocks.count:
            block = self._block(number)
            rows = (self._rows_or_none(number, block) or b"")[: (ordinal - block.ordinal) * _ROW_SIZE]
            before += sum(key >> 16 == topic for _, _, key, _, _, _ in _ROW.iter_unpack(rows))
        return int(before)

    # -- Blocks

    def _scan_block(self, number: int, ordinal: int, until: int) -> Iterator[FarTimer]:
        """Yield the pending timers of a block that lie between two ordinals."""
        block = self._block(number)
        try:
            rows, payload = self._load(number, block)
        except Corruption as error:
            self._report(number, block, error)
            return iter(())
        first, end = max(0, ordinal - block.ordinal), min(block.count, until - block.ordinal)
        timers = _timers(rows, payload, first, end)
        fates = self.tombstones.fates(block.ordinal + first, block.ordinal + end)
        return timers if fates is None else (timer for timer, fate in zip(timers, fates, strict=True) if not fate)

    def _timer(self, ordinal: int) -> FarTimer:
        number = self._block_of(ordinal)
        block = self._block(number)
        rows, payload = self._load(number, block)
        within = ordinal - block.ordinal
        return next(_timers(rows, payload, within, within + 1))

    def _block_of(self, ordinal: int) -> int:
        """Return the number of the block that has this ordinal; behind the last timer that of no block."""
        if ordinal >= self.entry.count:
            return self._blocks.count
        numbers = range(self._blocks.count)
        return bisect_right(numbers, ordinal, key=lambda number: self._block(number).ordinal) - 1

    def _block(self, number: int) -> _Block:
        return _Block._make(_BLOCK.unpack(self._blocks.row(number)))

    def _rows_or_none(self, number: int, block: _Block) -> bytes | None:
        """Return the rows of a block; None if they are damaged, which is reported once."""
        try:
            rows = self._read(block.count * _ROW_SIZE, block.at)
            self._check(number, rows, block.rows_crc)
        except Corruption as error:
            self._report(number, block, error)
            return None
        return rows

    def _report(self, number: int, block: _Block, error: Corruption) -> None:
        if number not in self._damaged:
            self._damaged.add(number)
            log.error("delayed messages are lost: %s timers=%d first_due_ms=%d", error, block.count, block.due_ms)

    def _load(self, number: int, block: _Block) -> tuple[bytes, bytes]:
        size = block.count * _ROW_SIZE
        found = self._read(size + block.payload_size, block.at)
        rows, payload = found[:size], found[size:]
        self._check(number, rows, block.rows_crc)
        self._check(number, payload, block.payload_crc)
        return rows, payload

    def _check(self, number: int, data: bytes, expected: int) -> None:
        actual = crc32c(data)
        if actual != expected:
            raise Corruption(
                f"{self.path}: block {number} has CRC {actual:#010x} where its table says {expected:#010x}"
            )

    def _read(self, size: int, at: int) -> bytes:
        found = self._files.read(self._file, size, at)
        if len(found) != size:
            raise Corruption(f"{self.path}: {len(found)} of {size} bytes at {at}")
        return found


def _bisect_rows(rows: bytes, count: int, key: bytes) -> int:
    size = len(key)
    return bisect_left(range(count), key, key=lambda row: rows[row * _ROW_SIZE : row * _ROW_SIZE + size])


def _timers(rows: bytes, payload: bytes, first: int, end: int) -> Iterator[FarTimer]:
    """Yield the timers `first` up to, not including, `end` of a block."""
    at = 0
    for _, _, _, frame_size, name_size, _ in _ROW.iter_unpack(rows[: first * _ROW_SIZE]):
        at += frame_size + name_size
    for due_ms, address, key, frame_size, name_size, form in _ROW.iter_unpack(
        rows[first * _ROW_SIZE : end * _ROW_SIZE]
    ):
        frame_at = at + name_size
        name, at = payload[at:frame_at], frame_at + frame_size
        yield new_tuple(FarTimer, (due_ms, address, key, form, name, payload[frame_at:at]))
