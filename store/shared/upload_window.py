"""The class UploadWindow: how many bytes an owner uploads at a time.

    an upload took a sixth of `cluster.takeover_ms`, or less    the window grows by its size
    it took longer                                              the window becomes what the store takes in that time

It is never larger than `shared.in_flight_bytes`.

The lease of an owner counts from the beginning of an upload. If all of `shared.in_flight_bytes` went to a store at the
end of a slow line, each upload would take longer than the lease: the owner would abort its clients again and again, and
each request without an answer would be sent a second time over the same line.
"""

from typing import Final

FIRST_BYTES: Final = 8 << 20
BYTES_MIN: Final = 1 << 20  # A store that is slow to answer still takes many small objects at a time.
TARGET_SHARE: Final = 6  # The longest time that an upload should take is this part of the time of a takeover.


class UploadWindow:
    """The window of one owner. It is small at first, because the rate of the store is not known yet."""

    def __init__(self, bytes_max: int, takeover_ms: int, took_ms: int = 0) -> None:
        """`took_ms` is how long requests take, as far as is known."""
        self._bytes_max, self._target_ms = bytes_max, takeover_ms // TARGET_SHARE
        self.bytes = min(FIRST_BYTES, bytes_max)
        self.took_ms = took_ms  # How long the last upload took.

    def note(self, size: int, in_flight_bytes: int, took_ms: int) -> None:
        """Note an upload of `size` bytes. When it began, `in_flight_bytes` were in flight, its own included."""
        self.took_ms = took_ms
        if took_ms <= self._target_ms:
            self.bytes = min(self._bytes_max, self.bytes + size)
        else:
            taken = in_flight_bytes * self._target_ms // took_ms
            self.bytes = max(min(BYTES_MIN, self._bytes_max), min(self.bytes, taken))
