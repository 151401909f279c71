"""Whether the store accepts appends: what a full or a failing disk changes, and how appends resume.

    state        `refusal`      entered when                                     left when
    writable     None           the store opens
    above mark   DiskFull       `check_disk` finds the used share of the disk    `check_disk` finds it at or below
                                above `store.disk_full_ratio`                    `store.disk_resume_ratio`
    blocked      DiskFull       a write met ENOSPC, EDQUOT, EMFILE or ENFILE     the same write succeeds: above mark,
                                                                                 writable after EMFILE or ENFILE
    behind       StoreBehind    `fall_behind`: the object store lacks too much       `catch_up`
    ended        WritingEnded   any other write failed, or an fsync failed       never: the broker must be restarted

In the state *blocked*, promises that wait for the log fail with DiskFull, unless the spare file is being removed: then
they wait for the write that follows, and a deletion is answered. Units that were appended remain in the write
buffer, because the state in memory already contains their changes; `check_disk` repeats the write of the same bytes at
the same position until it succeeds. A message whose sender received an error may therefore be stored later.

In the state *ended*, no write is repeated: after a failed fsync the kernel may have dropped the dirty pages, and a
later fsync that succeeds proves nothing.

When a write fails with ENOSPC, the spare file is removed (`store/spare_file.py`), so that deletions and checkpoints can
still be written. docs/internals/errors.md lists the effect of every failed operation.
"""

import logging
from collections.abc import Callable

from duolog.store.errors import NO_HANDLES, NO_SPACE, DiskFull, StoreError, WritingEnded
from duolog.store.files import Files
from duolog.store.log.commitlog import CommitLog
from duolog.store.options import StoreOptions
from duolog.store.spare_file import Spare
from duolog.store.workers import Executors, Failure

log = logging.getLogger("store")


class WriteState:
    """The state of one store in the table above. `attach` must be called before any other method."""

    def __init__(self, files: Files, options: StoreOptions, executors: Executors, commitlog: CommitLog) -> None:
        self.refusal: StoreError | None = None  # Why appends are refused at present.
        self.behind: StoreError | None = None  # The refusal of the state `behind`, also while another state hides it.
        self.is_blocked = False  # A write failed for want of space or file handles and has not succeeded since.
        self._lacks_handles = False  # The last write that failed had no file handle; the disk may have had space.
        self.is_closed = False  # The store is closed: outcomes of tasks that end later are ignored.
        self.usage = files.usage()  # (used bytes, total bytes) of the disk at the last check.
        self._files = files
        self._options = options
        self._executors = executors
        self._log = commitlog
        self._spare = Spare(files, options.spare_bytes)
        self._is_making_room = False  # The spare file is being removed.
        self.is_retrying = False  # The blocked write will be repeated once the spare file is removed.
        self._write: Callable[[], None] = _not_attached
        self._fail_promises: Callable[[StoreError], None] = _not_attached

    def attach(self, write: Callable[[], None], fail_promises: Callable[[StoreError], None]) -> None:
        """Set the function that repeats a blocked write, and the function that fails the promises that wait for it."""
        self._write, self._fail_promises = write, fail_promises

    @property
    def has_ended(self) -> bool:
        """Whether writing has ended until a restart."""
        return isinstance(self.refusal, WritingEnded)

    def raise_if_ended(self) -> None:
        """Raise WritingEnded if writing has ended."""
        if self.refusal is not None and self.has_ended:
            raise WritingEnded(*self.refusal.args)

    # -- Failures

    def write_failed(self, error: OSError) -> None:
        """Enter the state `blocked` or `ended` because a write to the log or to an index failed with this error."""
        if error.errno not in (*NO_SPACE, *NO_HANDLES):
            self.end_writing(f"write failed: {error}")
            return
        self._lacks_handles = error.errno in NO_HANDLES
        why = "no file can be opened" if self._lacks_handles else "the disk is full"
        if self.refusal is None:
            log.warning("appends are refused, %s: %s unwritten_bytes=%d", why, error, self._log.unwritten_bytes)
        self.refusal = DiskFull(f"{why}: {error}")
        self.is_blocked = True
        if error.errno in NO_SPACE:
            self.make_room()
        if self.is_blocked and not self.is_retrying:
            self._fail_promises(self.refusal)

    def end_writing(self, reason: str) -> None:
        """Refuse every append until a restart, and fail the promises that can no longer be kept."""
        if self.has_ended:
            return
        log.critical("writing has ended, until the broker is restarted: %s durable=%d", reason, self._log.durable)
        self.refusal = WritingEnded(reason)
        self._fail_promises(self.refusal)

    # -- The object store

    def fall_behind(self, refusal: StoreError) -> None:
        """Refuse appends, because the object store lacks too much of the log."""
        if self.behind is None:
            log.warning("appends are refused, the object store is behind: %s", refusal)
        if self.refusal is self.behind:
            self.refusal = refusal
        self.behind = refusal

    def catch_up(self) -> None:
        """Accept appends again, as far as the disk does."""
        log.warning("the object store has caught up, appends are accepted")
        if self.refusal is self.behind:
            self.refusal = None
        self.behind = None

    # -- The spare file

    def make_room(self) -> None:
        """Remove the spare file, because a write to the log or to a checkpoint failed with ENOSPC."""
        if self.has_ended or self._is_making_room or self.is_closed:
            return
        self._is_making_room = True
        self.is_retrying = self.is_blocked  # An earlier run may have left the file, so `is_held` does not matter.
        self._spare.is_held = False
        self._executors.background.submit(self._spare.give_up, self._room_made)

    def _room_made(self, outcome: Failure | None) -> None:
        """Repeat the blocked write; if it fails again, the next `check_disk` repeats it."""
        self.is_retrying = False
        if outcome is not None:
            log.warning("the spare file could not be removed: %s", outcome)
            if self.is_blocked and self.refusal is not None:
                self._fail_promises(self.refusal)
        elif self.is_blocked and not self.has_ended and not self.is_closed:
            self.is_blocked = False
            self._write()
        self._is_making_room = False

    def _hold_spare(self) -> None:
        """Create the spare file in the background thread if it is missing and the disk has space for it."""
        used, total = self.usage
        has_room = used + self._spare.size <= total * self._options.disk_resume_ratio
        if self._spare.size and has_room and not self._spare.is_held and not self._is_making_room:
            self._spare.is_held = True
            self._executors.background.submit(self._spare.hold, self._spare_held)

    def _spare_held(self, outcome: Failure | None) -> None:
        if outcome is not None:
            self._spare.is_held = False
            log.warning("the spare file could not be created, the next look at the disk tries again: %s", outcome)

    # -- The disk's usage

    def check_disk(self) -> None:
        """Read the usage of the disk in a thread, then refuse appends or accept them again.

        The method is to be called about every second. It does nothing once writing has ended.
        """
        if not self.has_ended:
            self._executors.readers.submit(self._files.usage, self._take_usage)

    def _take_usage(self, usage: tuple[int, int] | Failure) -> None:
        if not isinstance(usage, tuple):
            log.warning("disk usage could not be read: %s", usage)
            return
        self.usage = used, total = usage
        if self.has_ended or self.is_closed:
            return
        if self.refusal is self.behind:
            if used > total * self._options.disk_full_ratio:
                log.warning(
                    "the disk is almost full, above store.disk_full_ratio, appends are refused: used=%d total=%d",
                    used,
                    total,
                )
                self.refusal = DiskFull(f"{used} of {total} bytes of the disk are used")
            else:
                self._hold_spare()
            return
        if self.is_blocked:
            self.is_blocked = False
            self._write()
        if self.is_blocked or self.has_ended:
            return
        if self._lacks_handles and used <= total * self._options.disk_full_ratio:
            log.warning("files can be opened again, appends are accepted")
        elif used <= total * self._options.disk_resume_ratio:
            log.warning("the disk has room again, appends are accepted: used=%d total=%d", used, total)
        else:
            return
        self._lacks_handles, self.refusal = False, self.behind


def _not_attached(*_: object) -> None:
    raise AssertionError("WriteState.attach comes first")
