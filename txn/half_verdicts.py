"""Verdicts on half messages: how a half message ended, and the verdicts of the latest."""

from enum import IntEnum
from typing import Final

VERDICTS_KEPT: Final = 1 << 16  # Of the last so many half messages the verdict is known.


class HalfVerdict(IntEnum):
    """How a half message ended; the numbers are in the log."""

    COMMITTED = 1
    ROLLED_BACK = 2
    GIVEN_UP = 3  # Asked about in vain: put aside for people to look at.


class RecentVerdicts:
    """The verdicts of the last so many half messages, in a ring by offset."""

    def __init__(self, size: int) -> None:
        self._end_offset = 0
        self._size = size
        self._ring = bytearray(size)

    def get(self, offset: int) -> HalfVerdict | None:
        if not self._end_offset - self._size <= offset < self._end_offset:
            return None
        number = self._ring[offset % self._size]
        return HalfVerdict(number) if number else None

    def forget(self, offset: int) -> None:
        """Make room for a new half message."""
        if offset >= self._end_offset:
            self._ring[offset % self._size] = 0
            self._end_offset = offset + 1

    def put(self, offset: int, verdict: HalfVerdict) -> None:
        if offset >= self._end_offset - self._size:
            self._ring[offset % self._size] = verdict

    def snapshot(self) -> tuple[int, bytes]:
        at = self._end_offset % self._size
        return self._end_offset, bytes(self._ring[at:] + self._ring[:at]).lstrip(b"\0")

    def restore(self, end_offset: int, verdicts: bytes) -> None:
        if end_offset < self._end_offset:
            return  # A snapshot's, appended again.
        self._end_offset = end_offset
        whole = bytearray(verdicts.rjust(self._size, b"\0"))
        at = end_offset % self._size
        self._ring = whole[self._size - at :] + whole[: self._size - at]
