"""The ids that producers give their half messages: each is one message of its topic, as long as it is remembered.

    open        as long as the half message is
    decided     the last so many, so that a verdict that is repeated is told from one for nobody

Names half messages by their offsets, as `txn.half` does. Follows what is appended, live and at recovery alike.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

DECIDED_KEPT: Final = 10_000

Id = tuple[str, str]  # topic, id
Row = tuple[int, str, str, bool]  # offset, topic, id, is decided


class HalfIds:
    """All ids. Invariant: an offset has one id at most, and an id one offset."""

    def __init__(self, decided_kept: int = DECIDED_KEPT) -> None:
        self._decided_kept = decided_kept
        self._offsets: dict[Id, int] = {}
        self._open: dict[int, Id] = {}
        self._decided: OrderedDict[int, Id] = OrderedDict()  # the oldest first

    def __len__(self) -> int:
        """Count the ids of open half messages."""
        return len(self._open)

    def offset_of(self, topic: str, id: str) -> int | None:
        return self._offsets.get((topic, id))

    def id_of(self, offset: int) -> Id | None:
        return self._open.get(offset) or self._decided.get(offset)

    def prepared(self, offset: int, topic: str, id: str) -> None:
        name = (topic, id)
        if name not in self._offsets:
            self._offsets[name] = offset
            self._open[offset] = name

    def decided(self, offset: int) -> None:
        name = self._open.pop(offset, None)
        if name is None:
            return
        self._decided[offset] = name
        if len(self._decided) > self._decided_kept:
            _, forgotten = self._decided.popitem(last=False)
            del self._offsets[forgotten]

    def snapshot(self, count_max: int) -> Iterator[list[Row]]:
        """Give (offset, topic, id, is decided) of all there are now, in lists of up to `count_max`.

        They are to be restored in this order.
        """
        parts = []
        for named, is_decided in ((self._decided, True), (self._open, False)):
            table = zip([*named], [*named.values()], strict=True)
            parts.append(_parts(table, is_decided, count_max))
        return chain(*parts)

    def restore(self, rows: Iterable[Row]) -> None:
        for offset, topic, id, is_decided in rows:
            self.prepared(offset, topic, id)
            if is_decided:
                self.decided(offset)


def _parts(table: Iterable[tuple[int, Id]], is_decided: bool, count_max: int) -> Iterator[list[Row]]:
    rows = ((offset, topic, id, is_decided) for offset, (topic, id) in table)
    while some := [*islice(rows, count_max)]:
        yield some
