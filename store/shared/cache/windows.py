"""The class Windows: how many chunks are asked for ahead of readers that go on from one chunk to the next.

The window of a reader begins with WINDOW_MIN chunks, and doubles with each chunk in it that the reader comes to, up to
WINDOW_MAX. Then WINDOW_MAX chunks are on their way, which is 250 MB/s with a store that answers after 200 ms. While a
download takes longer than SLOW_MS, the network is full, and larger windows would only make the chunk that a reader
waits for come later; so no window has more than WINDOW_MIN chunks then.

A reader may end before it comes to the chunks that were asked for ahead of it. After LEFT_MS, these no longer count
against the room for the chunks of other readers.
"""

from typing import Final

WINDOW_MIN: Final = 3
WINDOW_MAX: Final = 24
SLOW_MS: Final = 2_000
LEFT_MS: Final = 5_000
# With room for fewer chunks, those read ahead would be removed before they are read.
ROOM_CHUNKS_MIN: Final = 8


class Windows:
    """The chunks that were asked for ahead of readers, and that no reader has come to. Not thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` is the room for all chunks on the disk, at most half of which is for those read ahead."""
        self._bytes_max = bytes_max
        self._windows: dict[int, int] = {}  # The window with which a chunk was asked for, by its start.
        self._late: set[int] = set()  # The starts of chunks whose download has taken SLOW_MS.

    def note(self, start: int, window: int) -> None:
        """Note that a chunk is asked for ahead of a reader."""
        self._windows[start] = window

    def has_room(self, chunk_bytes: int) -> bool:
        """Return whether another chunk may be asked for."""
        return self._bytes_max >= max(ROOM_CHUNKS_MIN, 2 * len(self._windows) + 2) * chunk_bytes

    def next_window(self, start: int) -> int:
        """Return the window of a reader that has come to this chunk; 0 if it was not read ahead, or not anew."""
        window = self._windows.pop(start, 0)
        return min(2 * window, WINDOW_MIN if self._late else WINDOW_MAX)

    def forget(self, start: int) -> None:
        """Forget a chunk that is not on the disk, or to which no reader has come for LEFT_MS."""
        self._windows.pop(start, None)

    def note_late(self, start: int) -> None:
        """Note that the download of a chunk has taken SLOW_MS, with the wait for others."""
        self._late.add(start)

    def note_end(self, start: int) -> None:
        """Note that the download of a chunk has ended."""
        self._late.discard(start)
