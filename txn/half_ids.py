"""The class HalfIds: the ids that Kafka producers give their half messages. An id is unique in its topic.

The id of an open half message is stored until the verdict. The ids of the last `DECIDED_KEPT` decided half messages
are also stored, so that a repeated verdict is distinguished from a verdict for an unknown id.

Half messages are identified by their offsets, as in `txn.half`. The state changes after an append and at recovery.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

DECIDED_KEPT: Final = 10_000

Id = tuple[str, str]  # (topic, id).
Row = tuple[int, str, str, bool]  # (offset, topic, id, whether it is decided).


class HalfIds:
    """The ids of open and decided half messages. Invariant: an offset has at most one id, and an id has one offset."""

    def __init__(self, decided_kept: int = DECIDED_KEPT) -> None:
        self._decided_kept = decided_kept
        self._offsets: dict[Id, int] = {}
        self._open: dict[int, Id] = {}
        self._decided: OrderedDict[int, Id] = OrderedDict()  # By offset, in the order of verdicts.

    def __len__(self) -> int:
        """Return the number of ids of open half messages."""
        return len(self._open)

    def offset_of(self, topic: str, id: str) -> int | None:
        """Return the offset of the half message with this id; None if the id is unknown."""
        return self._offsets.get((topic, id))

    def id_of(self, offset: int) -> Id | None:
        """Return (topic, id) of the half message at this offset; None if it has no id or is unknown."""
        return self._open.get(offset) or self._decided.get(offset)

    def prepared(self, offset: int, topic: str, id: str) -> None:
        """Add the id of an open half message. An id that exists already is not changed."""
        name = (topic, id)
        if name not in self._offsets:
            self._offsets[name] = offset
            self._open[offset] = name

    def decided(self, offset: int) -> None:
        """Note that the half message at this offset was decided."""
        name = self._open.pop(offset, None)
        if name is None:
            return
        self._decided[offset] = name
        if len(self._decided) > self._decided_kept:
            _, forgotten = self._decided.popitem(last=False)
            del self._offsets[forgotten]

    def snapshot(self, count_max: int) -> Iterator[list[Row]]:
        """Yield the present rows in lists of up to `count_max`; `restore` must be called for them in this order."""
        parts = []
        for named, is_decided in ((self._decided, True), (self._open, False)):
            table = zip([*named], [*named.values()], strict=True)
            parts.append(_parts(table, is_decided, count_max))
        return chain(*parts)

    def restore(self, rows: Iterable[Row]) -> None:
        """Add rows of a snapshot."""
        for offset, topic, id, is_decided in rows:
            self.prepared(offset, topic, id)
            if is_decided:
                self.decided(offset)


def _parts(table: Iterable[tuple[int, Id]], is_decided: bool, count_max: int) -> Iterator[list[Row]]:
    rows = ((offset, topic, id, is_decided) for offset, (topic, id) in table)
    while some := [*islice(rows, count_max)]:
        yield some
