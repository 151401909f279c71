"""Proves that a large object is read in parts, in order, a few at a time, and that nothing goes on afterwards."""

import asyncio
from contextlib import aclosing

import pytest

from duolog.store.objects.errors import StoreRefused
from duolog.store.objects.transfers import RANGE_BYTES, RANGES_AT_ONCE, read_ahead
from tests.kit.clock import ManualClock
from tests.kit.loop import run

PARTS = 7
SIZE = PARTS * RANGE_BYTES - 5


class Reads:
    """Serves reads of one object and counts them. The content of a part is its position."""

    def __init__(self, *, fails_from: int = 10 * SIZE) -> None:
        self.under_way = self.most = self.ended = 0
        self._fails_from = fails_from

    async def read(self, at: int, length: int) -> bytes | None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0.05 / (1 + at // RANGE_BYTES))  # Later parts come earlier.
            if at >= self._fails_from:
                raise StoreRefused("no")
            return f"{at}-{min(at + length, SIZE)}".encode() if at < SIZE else b""
        finally:
            self.under_way -= 1
            self.ended += 1


def expected(start: int) -> list[bytes]:
    return [f"{at}-{min(at + RANGE_BYTES, SIZE)}".encode() for at in range(start, SIZE, RANGE_BYTES)]


def test_parts_come_in_order_a_few_at_a_time() -> None:
    reads = Reads()

    async def main() -> list[bytes]:
        return [part async for part in read_ahead(reads.read, 3, SIZE)]

    assert run(main(), ManualClock()) == expected(3)
    assert (reads.most, reads.ended) == (RANGES_AT_ONCE, PARTS)


def test_object_that_is_shorter_ends_the_parts() -> None:
    reads = Reads()

    async def main() -> list[bytes]:
        return [part async for part in read_ahead(reads.read, 0, SIZE + 3 * RANGE_BYTES)]

    assert run(main(), ManualClock()) == expected(0)
    assert reads.under_way == 0


def test_reader_that_stops_ends_what_is_under_way_and_hears_of_no_failure_of_it() -> None:
    reads = Reads(fails_from=RANGE_BYTES)
    unheard: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with aclosing(read_ahead(reads.read, 0, SIZE)) as parts:
            async for part in parts:
                assert part == expected(0)[0]
                break
        await asyncio.sleep(1)
        with pytest.raises(StoreRefused):
            async for _ in read_ahead(reads.read, RANGE_BYTES, SIZE):
                pass
        await asyncio.sleep(1)

    run(main(), ManualClock())
    assert (reads.under_way, unheard) == (0, [])
