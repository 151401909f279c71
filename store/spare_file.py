"""The spare file: reserved disk space that is freed when the disk is full, so that deletions can be written.

    data/spare   `store.spare_bytes` of reserved blocks; the content has no meaning

                a write fails with ENOSPC              the disk has enough space again
    exists  --------------------------->  removed  ------------------------------------>  exists

Before a segment can be removed, a deletion, a checkpoint and a snapshot must be written, and each needs some blocks.
After a write of the log has failed with ENOSPC, `WriteState` accepts only deletions until the used share of the disk is
below `store.disk_resume_ratio`. On a file system that copies on write or compresses, the file may reserve no space; it
then has no effect.
"""

from contextlib import suppress

from duolog.store.files import Files

SPARE_PATH = "spare"


class Spare:
    """The spare file of one data directory. All methods but the constructor block."""

    def __init__(self, files: Files, size: int) -> None:
        self._files = files
        self.size = size
        self.is_held = False  # Whether this run has created the file. A file of an earlier run may exist all the same.

    def hold(self) -> None:
        """Create the file, unless an earlier run left it, and reserve its blocks.

        Removes the file and raises OSError if the blocks cannot be reserved.
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
