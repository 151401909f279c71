"""The marks of reset positions: where a group's next pull of a queue must begin (`offset_resets.py`).

Marks are kept in memory only.
"""

from typing import Final

MARKS_MAX: Final = 100_000  # Queues of all groups; the oldest make room.


class ResetMarks:
    """The marks: where a group's next pull of a queue is to begin."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, int], int] = {}  # (group by its RocketMQ name, queue key): offset; oldest first

    def __len__(self) -> int:
        return len(self._marks)

    def mark(self, group: str, key: int, offset: int) -> None:
        self._marks.pop((group, key), None)
        if len(self._marks) >= MARKS_MAX:
            del self._marks[next(iter(self._marks))]
        self._marks[group, key] = offset

    def find(self, group: str, key: int) -> int | None:
        return self._marks.get((group, key))

    def clear(self, group: str, key: int) -> None:
        self._marks.pop((group, key), None)
