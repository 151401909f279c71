"""The spare file: reserved disk space that is freed when the disk is full, so that deletions can be written.

    data/spare   `store.spare_bytes` of reserved blocks; the content has no meaning

              ENOSPC                  the disk has enough space again
    held  ------------->  removed  ------------------------------------>  held

Before a segment can be removed, a deletion, a checkpoint and a snapshot must be written, and each needs some blocks.
Once a write of the log has met ENOSPC, only deletions are appended: `WriteState` refuses the rest until the disk is
below `store.disk_resume_ratio`. On a file system that copies on write or compresses, the file may reserve
nothing; it is then useless but harmless.
"""

from contextlib import suppress

from duolog.store.files import Files

SPARE_PATH = "spare"


class Spare:
    """The spare file of one data directory. All methods but the constructor block."""

    def __init__(self, files: Files, size: int) -> None:
        self._files = files
        self.size = size
        self.is_held = False  # Whether this run holds the file. A file of an earlier run may exist all the same.

    def hold(self) -> None:
        """Create the file, or take over that of an earlier run, and reserve its blocks.

        Raises OSError; the file is removed then.
        """
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
        """Remove the file if it exists. Raises OSError."""
        with suppress(FileNotFoundError):
            self._files.remove(SPARE_PATH)
