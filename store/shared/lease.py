"""The class OwnerLease: how long an owner may answer reads without an answer from the object store.

    owner      create of slot n begins        ... answers until begun + 9/10 takeover_ms
                 |--------- slot n exists ----|
    standby              sees slot n          ... may fence when takeover_ms have passed without a further slot

The lease only concerns reads: no acknowledgement depends on it, because an acknowledgement needs a slot that counts.
The lease counts from the beginning of the request, and a standby counts from the moment at which it has seen the slot,
which is later. So an owner stops answering before another one can begin, if the rates of the monotonic clocks of the
two machines differ by less than a tenth.

An owner that is deposed while it has a lease gives it up: it stops answering, and then creates
`released/<epoch>-<writer>`. The new owner looks for this object while it waits for the end of the lease. Only an owner
that has answered clients creates it, because one that is deposed while it waits for the end of an earlier lease must
not end the wait of its successor.
"""

from typing import Final

from duolog.store.shared.wal.wal_object import Identity

RELEASED_FOLDER: Final = "released/"
RELEASE_CHECKS: Final = 30  # How often a new owner looks for this object in `cluster.takeover_ms`.


def released_key(owner: Identity) -> str:
    """Return the key of the object by which an owner gives up its lease."""
    return f"{RELEASED_FOLDER}{owner.epoch:020}-{owner.writer.hex()}"


def lease_length_ms(takeover_ms: int) -> int:
    """Return how long an owner may answer after the create of a slot began."""
    return takeover_ms * 9 // 10


class OwnerLease:
    """The lease of one owner, in its own monotonic time."""

    def __init__(self, takeover_ms: int, begun_mono_ms: int) -> None:
        """Begin a lease. `begun_mono_ms` is when the creates began by which the owner took over (`wal/fencing.py`)."""
        self._length_ms = lease_length_ms(takeover_ms)
        self.until_mono_ms = begun_mono_ms + self._length_ms

    def renew(self, begun_mono_ms: int) -> None:
        """Extend the lease, because a slot counts whose create began at this time."""
        self.until_mono_ms = max(self.until_mono_ms, begun_mono_ms + self._length_ms)

    def is_renewed_since(self, mono_ms: int) -> bool:
        """Return whether a slot counts whose create began after this time."""
        return self.until_mono_ms - self._length_ms > mono_ms

    def is_valid(self, mono_ms: int) -> bool:
        """Return whether the owner may answer at this time."""
        return mono_ms < self.until_mono_ms
