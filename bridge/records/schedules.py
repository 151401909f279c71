"""Recurring messages."""

from typing import NamedTuple

from duolog.bridge.records.layout import StateRecordBody


class BurstOfRuns(NamedTuple):
    delay_ms: int
    period_ms: int
    count: int | None  # type: ignore[assignment]  # hides tuple.count


class ScheduleRegistered(StateRecordBody, frozen=True, tag=48):
    """A recurring message: either `period_ms` or `expression` and `zone` say when. Without `due_ms` it has ended."""

    name: str
    key: int  # of the queue it goes to
    form: int
    frame: bytes  # A pending message (`bridge/data/pending_frames.py`).
    number: int  # of the next run
    due_ms: int | None
    missed: str
    period_ms: int | None = None
    start_ms: int | None = None
    expression: str | None = None
    zone: str | None = None
    until_ms: int | None = None
    count: int | None = None
    burst: BurstOfRuns | None = None
    is_kept: bool = True  # when it has ended


class ScheduleStepped(StateRecordBody, frozen=True, tag=49):
    """The next run; without `due_ms` there is none, and `is_removed` says that it was taken away."""

    name: str
    number: int | None = None
    due_ms: int | None = None
    is_removed: bool = False
