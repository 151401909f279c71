"""Half messages: their verdicts, and when the broker sends a check-back to their producers.

    state        commit       rollback       unknown     a check, fewer than `checks_max` so far      the next check
    unknown      UnknownHalf  UnknownHalf    -           -                                            -
    open         committed    rolled back    open        open; next check an interval later           given up
    committed    repeated(1)  Decided        -           -                                            -
    rolled back  Decided      repeated(1)    -           -                                            -
    given up     Decided      Decided        -           -                                            -

(1) A repeated verdict changes nothing and is no error. A half message that is open for too long is given up, too.

A half message is identified by its offset in the queue of half messages, which never changes. It is first checked after
its immunity, then once in each interval, until it was checked `checks_max` times. `judge` and `due` decide and change
nothing. The caller appends the decision, and then `prepared`, `decided` and `looked` change the state, live and at
recovery.

A million open half messages take 33 MB: pages of columns, in the order of offsets, and a heap of pages by next check.

    pages     [ 17 18 21 22 .. ]  [ 530 531 .. ]  [ 2014 ]        a decided one leaves a hole; when half are holes,
    due        +6 .. +4 ..         +9 ..           +11            the page is rewritten, and joined with its neighbour
    heap      (+4, page 1)  (+9, page 2)  (+11, page 3)           if both fit into one

So an open half message costs nothing between two checks. Times are wall milliseconds. Apache RocketMQ's way is in
TransactionalMessageServiceImpl.java and EndTransactionProcessor.java: there each check appends the half message again,
with a new offset, and a late verdict for the old offset decides it twice.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

from duolog.store.copy_on_write import CopyOnWrite
from duolog.txn.half_pages import COLUMN_CODES, HOLE, NEVER_MS, Askers, HalfPage, OpenPage, from_bytes, to_bytes
from duolog.txn.half_verdicts import VERDICTS_KEPT, HalfVerdict, RecentVerdicts

PAGE_MAX: Final = 1024  # Half messages of one page: the unit of work of a look.
CHECKS_MAX: Final = 255  # What a byte can count.


class UnknownHalf(Exception):
    """There is no such half message, or it was decided long ago."""


class AlreadyDecided(Exception):
    """It was decided otherwise."""

    def __init__(self, offset: int, verdict: HalfVerdict) -> None:
        super().__init__(f"half message {offset} was {verdict.name.lower().replace('_', ' ')}")
        self.verdict = verdict


class Half(NamedTuple):
    """One open half message."""

    offset: int
    stored_ms: int
    due_ms: int  # of the next look
    checks: int  # so far
    asker: str  # whom to ask: opaque here


class HalfMessages:
    """The open half messages and the latest verdicts. Only `prepared`, `looked` and `decided` change them.

    The class has more than 20 methods because pages, the heap of their due times and the sums must change together.
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
        self._pages: list[HalfPage] = []  # by offset
        self._starts: list[int] = []  # Invariant: the first offset of each page, holes included.
        self._heap: list[tuple[int, int, HalfPage]] = []  # by due time and number; those of pages that are gone stay in
        self._pages_made = 0  # numbers them, so that equal times never compare pages
        self._askers = Askers()
        self._count = 0
        self._verdicts = RecentVerdicts(verdicts_kept)
        self._moment: CopyOnWrite[HalfPage, OpenPage] = CopyOnWrite(self._open_page)  # of a snapshot

    # -- Asking

    def __len__(self) -> int:
        """Count the open ones."""
        return self._count

    def __contains__(self, offset: int) -> bool:
        return self._find(offset) is not None

    @property
    def first_offset(self) -> int | None:
        """The oldest open one: nothing from here on may be lost. None if there is none."""
        return next((page.first_open() for page in self._pages if page.open_count), None)

    def find(self, offset: int) -> Half | None:
        found = self._find(offset)
        return None if found is None else self._half(*found)

    def checks_of(self, offset: int) -> int:
        """Say how often it was looked at; of one that is not open 0."""
        found = self._find(offset)
        return 0 if found is None else found[0].checks[found[1]]

    def open(self, since: int = 0) -> Iterator[Half]:
        """Give the open ones from that offset on; nothing may change meanwhile."""
        for page in self._pages[max(0, bisect_right(self._starts, since) - 1) :]:
            for at, offset in enumerate(page.offsets):
                if offset >= since and page.dues_ms[at] != HOLE:
                    yield self._half(page, at)

    def counts_by_asker(self) -> dict[str, int]:
        return self._askers.counts()

    def judge(self, offset: int, verdict: HalfVerdict) -> bool:
        """Tell whether this verdict is to be carried out; False if it was before.

        Raises UnknownHalf, AlreadyDecided.
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
        """Give a time before which nothing is to be looked at; None: nothing is open."""
        heap = self._heap
        while heap and not heap[0][2].open_count:
            heappop(heap)[2].heap_ms = NEVER_MS
        return heap[0][0] if heap else None

    def due(self, now_ms: int, count_max: int) -> list[Half]:
        """Name up to `count_max` to look at now, about the longest due first; they stay due until `looked`."""
        found: list[Half] = []
        seen: list[HalfPage] = []
        while len(found) < count_max and (due_ms := self.next_deadline_ms()) is not None and due_ms <= now_ms:
            page = heappop(self._heap)[2]
            if due_ms != page.heap_ms:
                continue  # It has an earlier place in the heap, or had one.
            seen.append(page)
            page.heap_ms = NEVER_MS  # It may be in the heap twice under one time.
            places = [at for at, each_ms in enumerate(page.dues_ms) if HOLE < each_ms <= now_ms]
            found += [self._half(page, at) for at in places[: count_max - len(found)]]
        for page in seen:
            self._push(page, page.earliest_ms())
        return found

    def clock_was_set_back(self, now_ms: int) -> Iterator[int]:
        """Let none wait for a look longer than if it had come now: a clock that was ahead has put some far off.

        Yields after each page how many half messages it has. It goes by offset, for pages are joined meanwhile.
        """
        latest_ms = now_ms + max(self._interval_ms, self._immunity_ms)
        since = 0
        while (page := self._page_from(since)) is not None:
            since = page.offsets[-1] + 1
            late = [at for at, due_ms in enumerate(page.dues_ms) if due_ms != HOLE and due_ms > latest_ms]
            if late:
                self._moment.before_change(page)
            for at in late:
                page.dues_ms[at] = latest_ms
            if late:
                self._push(page, page.earliest_ms())
            yield len(page.offsets)

    def _page_from(self, offset: int) -> "HalfPage | None":
        """Give the first page that ends at this offset or behind it."""
        for page in self._pages[max(0, bisect_right(self._starts, offset) - 1) :][:2]:
            if page.offsets[-1] >= offset:
                return page
        return None

    def is_last_look(self, half: Half, now_ms: int) -> bool:
        """Say whether this look gives it up instead of asking: it was asked often enough, or was open for too long.

        `now_ms` is the careful time: by a clock that is ahead all would be open for too long.
        """
        return half.checks >= self.checks_max or now_ms - half.stored_ms >= self._open_ms_max

    # -- Changing

    def prepared(self, offset: int, asker: str, stored_ms: int, immunity_ms: int | None = None) -> None:
        """Take note of a half message; without an immunity of its own it has the usual one."""
        wait_ms = self._immunity_ms if immunity_ms is None else immunity_ms
        self._add(offset, stored_ms, stored_ms + min(wait_ms, self._open_ms_max), 0, asker)
        self._verdicts.forget(offset)

    def decided(self, offset: int, verdict: HalfVerdict) -> None:
        found = self._find(offset)
        if found is None:
            return  # A start reads this from a place in the log where its half message is over already.
        page, at = found
        self._moment.before_change(page)
        self._askers.release(page.askers[at])
        page.dues_ms[at] = HOLE
        page.open_count -= 1
        self._count -= 1
        self._verdicts.put(offset, verdict)
        size = len(page.offsets)
        if page.open_count * 2 <= size and (size == self._page_max or page is not self._pages[-1]):
            self._tidy(page)  # The last page is left alone until it is full: it is where most are decided.

    def looked(self, offsets: Iterable[int], now_ms: int, *, counts: bool = True) -> None:
        """Count a look at these, and put the next one an interval later; or put it there only."""
        for offset in offsets:
            found = self._find(offset)
            if found is None:
                continue
            page, at = found
            self._moment.before_change(page)
            last_ms = page.stored_ms[at] + self._open_ms_max
            next_ms = now_ms + self._interval_ms
            page.dues_ms[at] = min(next_ms, last_ms) if last_ms > now_ms else next_ms
            if counts:
                page.checks[at] = min(CHECKS_MAX, page.checks[at] + 1)
            if page.dues_ms[at] < page.heap_ms:
                self._push(page, page.dues_ms[at])

    # -- Snapshots

    def snapshot(self) -> Iterator[OpenPage]:
        """Give what is open now, a page at a time while it goes on changing, until `end_snapshot`."""
        self._moment.begin(self._pages)
        return (saved for _, saved in self._moment.entries())

    def end_snapshot(self) -> None:
        self._moment.end()

    def _open_page(self, page: "HalfPage") -> OpenPage | None:
        if not page.open_count:
            return None
        columns = page.open_columns()
        names = {number: self._askers.name(number) for number in {*columns[-1]}}
        offsets, stored_ms, dues_ms, checks, askers = map(to_bytes, columns)
        return OpenPage(offsets, stored_ms, dues_ms, checks, askers, names)

    def restore(self, saved: OpenPage) -> None:
        """Take a page of a snapshot; what is known already is left as it is."""
        offsets, stored_ms, dues_ms, checks, askers = map(from_bytes, COLUMN_CODES, saved[:5])
        for offset, stored, due, count, number in zip(offsets, stored_ms, dues_ms, checks, askers, strict=True):
            self._add(offset, stored, due, count, saved.asker_names[number])

    def verdicts(self) -> tuple[int, bytes]:
        """Give the offset behind the last verdict that is kept, and the verdicts up to it, 0 where there is none."""
        return self._verdicts.snapshot()

    def restore_verdicts(self, end_offset: int, verdicts: bytes) -> None:
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
            self._askers.name(page.askers[at]),
        )

    def _add(self, offset: int, stored_ms: int, due_ms: int, checks: int, asker: str) -> None:
        page = self._pages[-1] if self._pages else None
        if page is not None and offset <= page.offsets[-1]:
            return  # A snapshot's, appended again.
        if page is None or len(page.offsets) >= self._page_max:
            self._pages_made += 1
            page = HalfPage(self._pages_made)
            self._pages.append(page)
            self._starts.append(offset)
        self._moment.before_change(page)
        page.offsets.append(offset)
        page.stored_ms.append(stored_ms)
        page.dues_ms.append(due_ms)
        page.checks.append(checks)
        page.askers.append(self._askers.take(asker))
        page.open_count += 1
        self._count += 1
        if due_ms < page.heap_ms:
            self._push(page, due_ms)

    def _push(self, page: "HalfPage", due_ms: int) -> None:
        """Give the page its place in the heap; an older place of it is passed over from now on."""
        if due_ms < NEVER_MS:
            page.heap_ms = due_ms
            heappush(self._heap, (due_ms, page.number, page))

    def _tidy(self, page: "HalfPage") -> None:
        """Write the page anew without its holes; an empty one goes, and two that fit into half a page become one."""
        number = bisect_right(self._starts, page.offsets[0]) - 1
        if not page.open_count:
            del self._pages[number], self._starts[number]
            return
        page.drop_holes()
        self._starts[number] = page.offsets[0]
        if number and len(self._pages[number - 1].offsets) + len(page.offsets) <= self._page_max // 2:
            before = self._pages[number - 1]
            self._moment.before_change(before)
            before.join(page)
            del self._pages[number], self._starts[number]
            if page.heap_ms < before.heap_ms:
                self._push(before, page.heap_ms)
            page.open_count = 0  # Its places in the heap are passed over.
