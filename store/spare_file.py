"""The spare file: blocks of the disk that are given up when it is full, so that room can be made.

    data/spare   `store.spare_bytes` of reserved blocks; its content means nothing

              ENOSPC                            room again, and enough of it
    held  ------------->  given up (removed)  ------------------------------->  held

To make room a deletion must be written, then a checkpoint, then a snapshot; only then do segments go. They all need a
few blocks, and a disk without any has none. Once the log has met ENOSPC, nothing but deletions is appended: `Store`
refuses the rest until the disk is below its mark again. A file system that copies on write or compresses may
reserve nothing; then this file is of no use, and does no harm.
"""

from contextlib import suppress

from duolog.store.files import Files

SPARE_PATH = "spare"


class Spare:
    """The spare file of one data directory. All methods but the constructor block."""

    def __init__(self, files: Files, size: int) -> None:
        self._files = files
        self.size = size
        self.is_held = False  # As far as this run knows: an earlier run may have left the file.

    def hold(self) -> None:
        """Reserve the blocks, also of a file that an earlier run left. Raises OSError, and leaves none then."""
        try:
            self._reserve()
        except OSError:
            with suppress(OSError):
                self._files.remove(SPARE_PATH)
            raise

    def _reserve(self) -> None:
        try:
            handle = self._files.open(SPARE_PATH)
        except FileNotFoundError:
            handle = self._files.open(SPARE_PATH, create=True)
        try:
            self._files.reserve(handle, self.size)
        finally:
            self._files.close(handle)

    def give_up(self) -> None:
        """Remove the file, if there is one. Raises OSError."""
        with suppress(FileNotFoundError):
            self._files.remove(SPARE_PATH)
