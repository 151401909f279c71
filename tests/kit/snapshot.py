"""The class Snapshot: the records that a replayer of a test gives for a checkpoint."""

from collections.abc import Iterable


class Snapshot:
    """Records of a moment (`store.StateRecords`)."""

    def __init__(self, records: Iterable[bytes]) -> None:
        self._records = iter(records)

    def __iter__(self) -> "Snapshot":
        return self

    def __next__(self) -> bytes:
        return next(self._records)

    def close(self) -> None:
        self._records = iter(())
