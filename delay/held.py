"""Delayed records of open Kafka transactions: they become pending when the transaction is committed."""

from collections.abc import Callable, Iterator

from duolog.delay.rows import ROW, Timer, pack_row


class HeldTimers:
    """The timers of open transactions, by producer id; those of a producer in the order of their addresses."""

    def __init__(self) -> None:
        self._timers: dict[int, list[Timer]] = {}
        self.total = 0  # The number of timers of all producers.

    def count(self, producer_id: int) -> int:
        """Return the number of delayed records in a producer's open transaction."""
        return len(self._timers.get(producer_id, ()))

    def add(self, producer_id: int, timer: Timer) -> None:
        """Add a delayed record of a producer's open transaction, live and at recovery."""
        self._timers.setdefault(producer_id, []).append(timer)
        self.total += 1

    def take(self, producer_id: int) -> list[Timer]:
        """Remove and return the timers of a producer, because its transaction has ended."""
        timers = self._timers.pop(producer_id, [])
        self.total -= len(timers)
        return timers

    def first_address(self) -> int | None:
        """Return the lowest address of all timers; None if there are none."""
        return min((timers[0].address for timers in self._timers.values()), default=None)

    # -- Deleted topics

    def producer_ids(self) -> list[int]:
        return [*self._timers]

    def drop(self, producer_id: int, is_dropped: Callable[[int], bool]) -> int:
        """Remove the timers of a producer whose queue key `is_dropped` accepts; return the number examined."""
        timers = self.take(producer_id)
        for timer in timers:
            if not is_dropped(timer.queue_key):
                self.add(producer_id, timer)
        return len(timers)

    # -- Snapshot

    def snapshot(self) -> Iterator[tuple[int, bytes]]:
        """Return (producer id, rows) of this moment, for `restore`; they may be taken while timers are added."""
        held = [(producer_id, [*timers]) for producer_id, timers in self._timers.items()]
        return ((producer_id, b"".join(map(pack_row, timers))) for producer_id, timers in held)

    def restore(self, producer_id: int, rows: bytes) -> None:
        for row in ROW.iter_unpack(rows):
            self.add(producer_id, Timer(*row))
