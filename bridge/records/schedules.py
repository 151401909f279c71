"""State records of recurring messages."""

from typing import NamedTuple

from duolog.bridge.records.layout import StateRecordBody


class BurstOfRuns(NamedTuple):
    """Repeated deliveries after each run: the delay of the first, the period, and the number (None: without end)."""

    delay_ms: int
    period_ms: int
    count: int | None  # type: ignore[assignment]  # hides tuple.count


class ScheduleRegistered(StateRecordBody, frozen=True, tag=48):
    """A recurring message. `period_ms`, or `expression` and `zone`, define its runs. Without `due_ms` it has ended."""

    name: str
    key: int  # The key of the destination queue.
    form: int
    frame: bytes  # A pending message (`bridge/data/delayed/pending_frames.py`).
    number: int  # The number of the next run; after the end, of the run that would have followed.
    due_ms: int | None
    missed: str
    period_ms: int | None = None
    start_ms: int | None = None
    expression: str | None = None
    zone: str | None = None
    until_ms: int | None = None
    count: int | None = None
    burst: BurstOfRuns | None = None
    is_kept: bool = True  # Whether the schedule stays listed after its end.


class ScheduleStepped(StateRecordBody, frozen=True, tag=49):
    """The next run of a recurring message. Without `due_ms` there is none; `is_removed`: the schedule was deleted."""

    name: str
    number: int = 0  # As in ScheduleRegistered.
    due_ms: int | None = None
    is_removed: bool = False
