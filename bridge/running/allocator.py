"""`keep_freed_memory`: the C library keeps freed memory for the next buffer, instead of returning it to the system.

glibc returns a large buffer's memory when it is freed, and the system clears each page again at the next allocation. A
broker allocates up to a megabyte for each read of a consumer, so that was a fifth of the CPU time of consumers.
"""

from contextlib import suppress
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # The numbers of these parameters in glibc's malloc.h.
M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES_MAX: Final = 6 << 20  # More free memory than this at the end of a heap is returned. Each thread has a heap.
SEPARATE_BYTES_MIN: Final = 4 << 20  # Buffers of this size and more are not in the heap, and are returned when freed.


def keep_freed_memory() -> None:
    """Set the thresholds of this process. Nothing happens if its C library is not glibc, or cannot be called."""
    with suppress(ImportError, MemoryError, AttributeError, OSError):
        import ctypes  # Imported here, because the import may need executable memory, which a hardened system refuses.

        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        libc.mallopt(M_MMAP_THRESHOLD, SEPARATE_BYTES_MIN)
