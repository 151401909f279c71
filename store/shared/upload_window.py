"""The class UploadWindow: limits the bytes that an owner uploads at a time.

    duration of an upload                        effect
    up to a sixth of `cluster.takeover_ms`       the window grows by the size of the upload
    longer                                       the window becomes the size that the store accepts in that time

The window is never larger than `shared.in_flight_bytes`.

The owner lease counts from the beginning of an upload. If an owner uploaded all of `shared.in_flight_bytes` over a slow
line, each upload would take longer than the lease: the owner would repeatedly abort its connections, and each hedged
request would be sent a second time over the same line.
"""

from typing import Final

FIRST_BYTES: Final = 8 << 20  # The size of the first window.
BYTES_MIN: Final = 1 << 20  # The smallest window, because a store with slow answers still accepts many small objects.
TARGET_SHARE: Final = 6  # An upload should take at most a sixth of `cluster.takeover_ms`.


class UploadWindow:
    """The window of one owner. It is small at first, because the rate of the store is not known yet."""

    def __init__(self, bytes_max: int, takeover_ms: int, took_ms: int = 0) -> None:
        """`took_ms` is the duration of an earlier request; 0 if none is known."""
        self._bytes_max, self._target_ms = bytes_max, takeover_ms // TARGET_SHARE
        self.bytes = min(FIRST_BYTES, bytes_max)
        self.took_ms = took_ms  # The duration of the last upload.

    def note(self, size: int, in_flight_bytes: int, took_ms: int) -> None:
        """Note an upload of `size` bytes. When it began, `in_flight_bytes` were in flight, its own included."""
        self.took_ms = took_ms
        if took_ms <= self._target_ms:
            self.bytes = min(self._bytes_max, self.bytes + size)
        else:
            taken = in_flight_bytes * self._target_ms // took_ms
            self.bytes = max(min(BYTES_MIN, self._bytes_max), min(self.bytes, taken))
