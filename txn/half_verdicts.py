"""The verdicts on half messages: HalfVerdict, and the verdicts of the newest half messages."""

from enum import IntEnum
from typing import Final

VERDICTS_KEPT: Final = 1 << 16  # Half messages whose verdict is stored, counted back from the newest offset.


class HalfVerdict(IntEnum):
    """The verdict on a half message, or that it was given up. The numbers are stored in the log."""

    COMMITTED = 1
    ROLLED_BACK = 2
    GIVEN_UP = 3  # No verdict came after the last check-back; the message is stored for inspection by an operator.


class RecentVerdicts:
    """The verdicts of the last `size` offsets in a ring buffer with one byte for each offset."""

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
        """Clear the byte of a new half message. The verdict of the offset `size` below it is no longer stored."""
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
            return  # Recovery replays verdicts that are older than the state.
        self._end_offset = end_offset
        whole = bytearray(verdicts.rjust(self._size, b"\0"))
        at = end_offset % self._size
        self._ring = whole[self._size - at :] + whole[: self._size - at]
