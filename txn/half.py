"""The class HalfMessages: open half messages, the latest verdicts, and when the broker must send check-backs.

    state            commit          rollback        check-back is due   check-back is due, and none is left
    does not exist   UnknownHalf     UnknownHalf     -                   -
    open             committed       rolled back     open                given up
    committed        repeated        AlreadyDecided  -                   -
    rolled back      AlreadyDecided  repeated        -                   -
    given up         AlreadyDecided  AlreadyDecided  -                   -

No check-back is left after `checks_max` of them, or when the half message has been open for `open_ms_max`. The answer
"unknown" to a check-back changes nothing. A repeated verdict changes nothing, and is no error. HalfVerdict
(`txn/half_verdicts.py`) has the outcomes.

A half message is identified by its offset in the queue of half messages, which never changes. The first check-back is
due when its immunity time has passed, the next ones at intervals of `interval_ms`. `judge` and `due` change nothing.
The caller appends a half message, a verdict, or the record of check-backs, and then calls `prepared`, `decided` or
`checked`, which changes the state. Recovery calls the same methods.

A million open half messages take 33 MB. They are stored in pages of columns in the order of their offsets, and a heap
has the pages in the order of their next check-backs:

    offsets   [ 17 18 21 22 .. ]  [ 530 531 .. ]  [ 2014 ]
    due        +6 .. +4 ..         +9 ..           +11
    heap      (+4, page 1)  (+9, page 2)  (+11, page 3)

A decided half message leaves a hole in its page. When half of a page are holes, the page is rewritten without them, and
merged with the page before it if both fit into half a page. So an open half message takes no processor time between
two check-backs.

Times are wall milliseconds. In Apache RocketMQ (TransactionalMessageServiceImpl.java, EndTransactionProcessor.java)
each check-back appends the half message again with a new offset, and a late verdict for the old offset decides it
twice.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

from duolog.store.copy_on_write import CopyOnWrite
from duolog.txn.half_pages import (
    COLUMN_CODES,
    HOLE,
    NEVER_MS,
    CheckBackTargets,
    HalfPage,
    OpenPage,
    from_bytes,
    to_bytes,
)
from duolog.txn.half_verdicts import VERDICTS_KEPT, HalfVerdict, RecentVerdicts

PAGE_MAX: Final = 1024  # Half messages in one page, which is searched for due check-backs as a whole.
CHECKS_MAX: Final = 255  # The greatest number of check-backs that the column `checks` can hold.


class UnknownHalf(Exception):
    """There is no half message at this offset, or its verdict is no longer stored."""


class AlreadyDecided(Exception):
    """The half message was already decided in another way."""

    def __init__(self, offset: int, verdict: HalfVerdict) -> None:
        super().__init__(f"half message {offset} was {verdict.name.lower().replace('_', ' ')}")
        self.verdict = verdict


class Half(NamedTuple):
    """One open half message."""

    offset: int
    stored_ms: int
    due_ms: int  # The due time of the next check-back.
    checks: int  # The number of check-backs so far.
    target: str  # The producer group or URL to which check-backs are sent. This module does not interpret it.


class HalfMessages:
    """The open half messages and the latest verdicts. `prepared`, `checked`, `decided` and `restore` change them.

    The class has more than 20 methods because pages, the heap of their due times and the sums change together.
    """

    def __init__(
        self,
        *,
        immunity_ms: int,
        interval_ms: int,
        checks_max: int,
        open_ms_max: int,
        page_max: int = PAGE_MAX,
        verdicts_kept: int = VERDICTS_KEPT,
    ) -> None:
        assert checks_max < CHECKS_MAX, f"{checks_max} checks do not fit into a byte"
        self.checks_max = checks_max
        self._immunity_ms, self._interval_ms, self._open_ms_max = immunity_ms, interval_ms, open_ms_max
        self._page_max = page_max
        self._pages: list[HalfPage] = []  # In the order of offsets.
        self._starts: list[int] = []  # Invariant: the first offset of each page, holes included.
        # Heap of (earliest due time, page number, page). Items of removed pages stay in it and are skipped.
        self._heap: list[tuple[int, int, HalfPage]] = []
        self._pages_made = 0  # The number of the newest page. Page numbers order heap items with equal due times.
        self._targets = CheckBackTargets()
        self._count = 0  # Open half messages.
        self._verdicts = RecentVerdicts(verdicts_kept)
        self._snapshot_copies: CopyOnWrite[HalfPage, OpenPage] = CopyOnWrite(self._open_page)

    # -- Reading

    def __len__(self) -> int:
        """Return the number of open half messages."""
        return self._count

    def __contains__(self, offset: int) -> bool:
        return self._find(offset) is not None

    @property
    def first_offset(self) -> int | None:
        """The offset of the oldest open half message, which retention must not remove; None if none is open."""
        return next((page.first_open() for page in self._pages if page.open_count), None)

    def find(self, offset: int) -> Half | None:
        """Return the open half message at this offset; None if there is none."""
        found = self._find(offset)
        return None if found is None else self._half(*found)

    def checks_of(self, offset: int) -> int:
        """Return the number of check-backs for a half message; 0 if it is not open."""
        found = self._find(offset)
        return 0 if found is None else found[0].checks[found[1]]

    def open(self, from_offset: int = 0) -> Iterator[Half]:
        """Yield the open half messages from an offset on. The state must not change during the iteration."""
        for page in self._pages[max(0, bisect_right(self._starts, from_offset) - 1) :]:
            for at, offset in enumerate(page.offsets):
                if offset >= from_offset and page.dues_ms[at] != HOLE:
                    yield self._half(page, at)

    def counts_by_target(self) -> dict[str, int]:
        """Return the number of open half messages by `Half.target`."""
        return self._targets.counts()

    def judge(self, offset: int, verdict: HalfVerdict) -> bool:
        """Return whether the caller must carry out this verdict; False if it repeats the verdict that was given.

        Raises UnknownHalf or AlreadyDecided.
        """
        if self._find(offset) is not None:
            return True
        known = self._verdicts.get(offset)
        if known is None:
            raise UnknownHalf(f"there is no half message {offset}")
        if known != verdict:
            raise AlreadyDecided(offset, known)
        return False

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """Return a time before which no check-back is due; None if no half message is open."""
        heap = self._heap
        while heap and not heap[0][2].open_count:
            heappop(heap)[2].heap_ms = NEVER_MS
        return heap[0][0] if heap else None

    def due(self, now_ms: int, count_max: int) -> list[Half]:
        """Return up to `count_max` half messages whose check-back is due, approximately in the order of due times.

        They remain due until the caller calls `checked`.
        """
        found: list[Half] = []
        seen: list[HalfPage] = []
        while len(found) < count_max and (due_ms := self.next_deadline_ms()) is not None and due_ms <= now_ms:
            page = heappop(self._heap)[2]
            if due_ms != page.heap_ms:
                continue  # This item of the heap is out of date: the page has, or had, an earlier one.
            seen.append(page)
            page.heap_ms = NEVER_MS  # The heap may have two items of a page with the same due time.
            due = [at for at, each_ms in enumerate(page.dues_ms) if HOLE < each_ms <= now_ms]
            found += [self._half(page, at) for at in due[: count_max - len(found)]]
        for page in seen:
            self._push(page, page.earliest_ms())
        return found

    def clock_was_set_back(self, now_ms: int) -> Iterator[int]:
        """Lower the due times that are later than those of a half message stored at `now_ms`, page by page.

        They were computed while the clock was ahead. Yields after each page the number of half messages in it. Pages
        may be merged between two steps, so the next page is found by its offset.
        """
        latest_ms = now_ms + max(self._interval_ms, self._immunity_ms)
        from_offset = 0
        while (page := self._page_from(from_offset)) is not None:
            from_offset = page.offsets[-1] + 1
            late = [at for at, due_ms in enumerate(page.dues_ms) if due_ms != HOLE and due_ms > latest_ms]
            if late:
                self._snapshot_copies.before_change(page)
            for at in late:
                page.dues_ms[at] = latest_ms
            if late:
                self._push(page, page.earliest_ms())
            yield len(page.offsets)

    def _page_from(self, offset: int) -> "HalfPage | None":
        """Return the first page whose last offset is at or above this offset; None if there is none."""
        for page in self._pages[max(0, bisect_right(self._starts, offset) - 1) :][:2]:
            if page.offsets[-1] >= offset:
                return page
        return None

    def must_give_up(self, half: Half, now_ms: int) -> bool:
        """Return whether the half message must be given up instead of sending another check-back.

        This is the case if `checks_max` check-backs were sent, or if it has been open for `open_ms_max`. `now_ms` must
        be the trusted time: with a clock that is ahead, all half messages would be given up.
        """
        return half.checks >= self.checks_max or now_ms - half.stored_ms >= self._open_ms_max

    # -- Changing

    def prepared(self, offset: int, target: str, stored_ms: int, immunity_ms: int | None = None) -> None:
        """Add a half message. `immunity_ms` is the time until its first check-back; None for the default."""
        wait_ms = self._immunity_ms if immunity_ms is None else immunity_ms
        self._add(offset, stored_ms, stored_ms + min(wait_ms, self._open_ms_max), 0, target)
        self._verdicts.forget(offset)

    def decided(self, offset: int, verdict: HalfVerdict) -> None:
        """Note the verdict on a half message. Does nothing if it is not open."""
        found = self._find(offset)
        if found is None:
            return  # Recovery replays a verdict that the checkpoint already contains.
        page, at = found
        self._snapshot_copies.before_change(page)
        self._targets.release(page.targets[at])
        page.dues_ms[at] = HOLE
        page.open_count -= 1
        self._count -= 1
        self._verdicts.put(offset, verdict)
        size = len(page.offsets)
        if page.open_count * 2 <= size and (size == self._page_max or page is not self._pages[-1]):
            # The last page is rewritten only if it is full, because most verdicts are made there.
            self._rewrite_page(page)

    def checked(self, offsets: Iterable[int], now_ms: int, *, counts: bool = True) -> None:
        """Set the next check-back of these half messages to one interval after `now_ms`.

        `counts` is False if the check-backs were postponed. Otherwise one more check-back is counted for each half
        message, although none was sent if no producer was connected.
        """
        for offset in offsets:
            found = self._find(offset)
            if found is None:
                continue
            page, at = found
            self._snapshot_copies.before_change(page)
            last_ms = page.stored_ms[at] + self._open_ms_max
            next_ms = now_ms + self._interval_ms
            page.dues_ms[at] = min(next_ms, last_ms) if last_ms > now_ms else next_ms
            if counts:
                page.checks[at] = min(CHECKS_MAX, page.checks[at] + 1)
            if page.dues_ms[at] < page.heap_ms:
                self._push(page, page.dues_ms[at])

    # -- Snapshots

    def snapshot(self) -> Iterator[OpenPage]:
        """Yield the half messages that are open at this moment, page by page, although the state may change.

        `end_snapshot` must follow.
        """
        self._snapshot_copies.begin(self._pages)
        return (saved for _, saved in self._snapshot_copies.entries())

    def end_snapshot(self) -> None:
        """Release the copies of a snapshot."""
        self._snapshot_copies.end()

    def _open_page(self, page: "HalfPage") -> OpenPage | None:
        if not page.open_count:
            return None
        columns = page.open_columns()
        names = {number: self._targets.name(number) for number in {*columns[-1]}}
        offsets, stored_ms, dues_ms, checks, targets = map(to_bytes, columns)
        return OpenPage(offsets, stored_ms, dues_ms, checks, targets, names)

    def restore(self, saved: OpenPage) -> None:
        """Add a page of a snapshot. Half messages that exist already are not changed."""
        offsets, stored_ms, dues_ms, checks, targets = map(from_bytes, COLUMN_CODES, saved[:5])
        for offset, stored, due, count, number in zip(offsets, stored_ms, dues_ms, checks, targets, strict=True):
            self._add(offset, stored, due, count, saved.target_names[number])

    def verdicts(self) -> tuple[int, bytes]:
        """Return (end offset, verdicts) of the stored verdicts: one byte for each offset below the end offset.

        A byte is a HalfVerdict, or 0 if the half message is open or there is none.
        """
        return self._verdicts.snapshot()

    def restore_verdicts(self, end_offset: int, verdicts: bytes) -> None:
        """Restore what `verdicts` has returned."""
        self._verdicts.restore(end_offset, verdicts)

    # -- Pages

    def _find(self, offset: int) -> "tuple[HalfPage, int] | None":
        number = bisect_right(self._starts, offset) - 1
        if number < 0:
            return None
        page = self._pages[number]
        at = bisect_left(page.offsets, offset)
        if at == len(page.offsets) or page.offsets[at] != offset or page.dues_ms[at] == HOLE:
            return None
        return page, at

    def _half(self, page: "HalfPage", at: int) -> Half:
        return Half(
            page.offsets[at],
            page.stored_ms[at],
            page.dues_ms[at],
            page.checks[at],
            self._targets.name(page.targets[at]),
        )

    def _add(self, offset: int, stored_ms: int, due_ms: int, checks: int, target: str) -> None:
        page = self._pages[-1] if self._pages else None
        if page is not None and offset <= page.offsets[-1]:
            return  # Recovery replays a half message that the checkpoint already contains.
        if page is None or len(page.offsets) >= self._page_max:
            self._pages_made += 1
            page = HalfPage(self._pages_made)
            self._pages.append(page)
            self._starts.append(offset)
        self._snapshot_copies.before_change(page)
        page.offsets.append(offset)
        page.stored_ms.append(stored_ms)
        page.dues_ms.append(due_ms)
        page.checks.append(checks)
        page.targets.append(self._targets.take(target))
        page.open_count += 1
        self._count += 1
        if due_ms < page.heap_ms:
            self._push(page, due_ms)

    def _push(self, page: "HalfPage", due_ms: int) -> None:
        """Add an item of the page to the heap. Older items of the page are skipped from now on."""
        if due_ms < NEVER_MS:
            page.heap_ms = due_ms
            heappush(self._heap, (due_ms, page.number, page))

    def _rewrite_page(self, page: "HalfPage") -> None:
        """Rewrite a page without its holes, remove it if it is empty, and merge it with the page before it.

        Two pages are merged if both fit into half a page.
        """
        number = bisect_right(self._starts, page.offsets[0]) - 1
        if not page.open_count:
            del self._pages[number], self._starts[number]
            return
        page.drop_holes()
        self._starts[number] = page.offsets[0]
        if number and len(self._pages[number - 1].offsets) + len(page.offsets) <= self._page_max // 2:
            before = self._pages[number - 1]
            self._snapshot_copies.before_change(before)
            before.join(page)
            del self._pages[number], self._starts[number]
            if page.heap_ms < before.heap_ms:
                self._push(before, page.heap_ms)
            page.open_count = 0  # Its items in the heap are skipped.
