"""An index of a sorted table: rows of one size, found by bisection, in pages that each have a CRC.

    page      crc u32 | row ... | zeros            4096 bytes; the CRC-32C covers all that follows it

Rows are sorted by their bytes: the key is in front, and fields are big-endian. No row is in two pages. The owner of the
index stores the number of rows. A search reads about log2(pages) pages, and only the page that was read last is kept in
memory. The indexes of a table of a million timers have a few thousand pages.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from crc32c import crc32c

from duolog.store.errors import Corruption

PAGE_SIZE = 4096
_CRC_SIZE = 4
_NEIGHBOURS_MAX = 8  # Pages that `lower_of_hash` tries before it bisects all pages.

Read = Callable[[int, int], bytes]  # Takes (size, at), and returns exactly `size` bytes or raises Corruption.


def rows_per_page(row_size: int) -> int:
    return (PAGE_SIZE - _CRC_SIZE) // row_size


def pages_of(rows: bytes | bytearray, row_size: int) -> Iterator[bytes]:
    """Yield the pages of an index. `rows` has all sorted rows, one after the other."""
    step = rows_per_page(row_size) * row_size
    for at in range(0, len(rows), step):
        body = bytes(rows[at : at + step]).ljust(PAGE_SIZE - _CRC_SIZE, b"\0")
        yield crc32c(body).to_bytes(_CRC_SIZE, "big") + body


class PagedIndex:
    """One index of an immutable file: `count` rows from byte `at` on. Reading may block; raises Corruption."""

    def __init__(self, read: Read, name: str, at: int, row_size: int, count: int) -> None:
        self.count = count
        self._read, self._name, self._at, self._row_size = read, name, at, row_size
        self._per_page = rows_per_page(row_size)
        self.page_count = -(-count // self._per_page)
        # The number of the page that was read last, and the page: one value, because threads read it.
        self._last: tuple[int, bytes] = (-1, b"")

    def row(self, number: int) -> bytes:
        page, within = divmod(number, self._per_page)
        return self._row(self._page(page), within)

    def lower(self, key: bytes) -> int:
        """Return the number of the first row whose first bytes are `key` or greater."""
        size = len(key)
        pages = range(self.page_count)
        # The page before the first one that begins with the key or with more.
        return self._lower_in(max(0, bisect_left(pages, key, key=lambda number: self._start(number, size)) - 1), key)

    def lower_of_hash(self, key: bytes) -> int:
        """Return the same as `lower` for keys that are hashes of 8 bytes.

        Hashes are evenly distributed, so the page is guessed from the hash and few pages are read.
        """
        pages = self.page_count
        page = int.from_bytes(key, "big") * pages >> 64
        for _ in range(_NEIGHBOURS_MAX):
            if page and self._start(page, len(key)) >= key:
                page -= 1
            elif page + 1 < pages and self._start(page + 1, len(key)) < key:
                page += 1
            else:
                return self._lower_in(page, key)
        return self.lower(key)  # Many rows have the same hash, so the guess was far off.

    def check_page(self, number: int) -> None:
        """Read a page from the file; raises Corruption."""
        self._last = (-1, b"")
        self._page(number)

    def _start(self, page: int, size: int) -> bytes:
        return self._row(self._page(page), 0)[:size]

    def _lower_in(self, page: int, key: bytes) -> int:
        size, first = len(key), page * self._per_page
        rows = range(min(self._per_page, self.count - first))
        if not rows:
            return 0
        block = self._page(page)
        return first + bisect_left(rows, key, key=lambda number: self._row(block, number)[:size])

    def _row(self, page: bytes, within: int) -> bytes:
        at = _CRC_SIZE + within * self._row_size
        return page[at : at + self._row_size]

    def _page(self, number: int) -> bytes:
        last, page = self._last
        if last == number:
            return page
        page = self._read(PAGE_SIZE, self._at + number * PAGE_SIZE)
        actual, expected = crc32c(page[_CRC_SIZE:]), int.from_bytes(page[:_CRC_SIZE], "big")
        if actual != expected:
            raise Corruption(f"{self._name}: page {number} has CRC {actual:#010x} where {expected:#010x} is written")
        self._last = (number, page)
        return page
