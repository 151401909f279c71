"""Half messages: every row of the state table, then random histories against a simple model, live and replayed."""

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.txn.half import AlreadyDecided, HalfMessages, UnknownHalf
from duolog.txn.half_verdicts import HalfVerdict

IMMUNITY, INTERVAL, CHECKS_MAX, OPEN_MAX = 100, 50, 3, 1000
OFFSET = 7


def half_messages(page_max: int = 4, verdicts_kept: int = 8) -> HalfMessages:
    return HalfMessages(
        immunity_ms=IMMUNITY, interval_ms=INTERVAL, checks_max=CHECKS_MAX, open_ms_max=OPEN_MAX,
        page_max=page_max, verdicts_kept=verdicts_kept,
    )  # fmt: skip


# -- The table

Event = Callable[[HalfMessages], str]


def decide(verdict: HalfVerdict) -> Event:
    def event(halves: HalfMessages) -> str:
        try:
            if not halves.judge(OFFSET, verdict):
                return "repeated"
        except (UnknownHalf, AlreadyDecided) as error:
            return type(error).__name__
        halves.decided(OFFSET, verdict)
        return "done"

    return event


def look(halves: HalfMessages) -> str:
    """Check the half messages that are due next, as the caller does."""
    due_ms, found = halves.next_deadline_ms(), []
    while due_ms is not None and not (found := halves.due(due_ms, 10)):
        due_ms = halves.next_deadline_ms()  # Nothing was due before; now it is known better.
    if due_ms is None:
        return "-"
    (half,) = found
    halves.checked([half.offset], due_ms)
    if halves.must_give_up(half, due_ms):
        halves.decided(half.offset, HalfVerdict.GIVEN_UP)
        return "given up"
    return "asked"


def state_of(halves: HalfMessages) -> str:
    found = halves.find(OFFSET)
    if found is not None:
        return f"open {found.checks}"
    try:
        halves.judge(OFFSET, HalfVerdict.GIVEN_UP)
    except AlreadyDecided as error:
        return error.verdict.name
    except UnknownHalf:
        return "unheard of"
    return "GIVEN_UP"


def in_state(state: str) -> HalfMessages:
    halves = half_messages()
    if state != "unheard of":
        halves.prepared(OFFSET, "shop", 1_000)
    if state.startswith("open"):
        for _ in range(int(state[5:])):
            look(halves)
    elif state != "unheard of":
        halves.decided(OFFSET, HalfVerdict[state])
    return halves


COMMIT, ROLL_BACK = decide(HalfVerdict.COMMITTED), decide(HalfVerdict.ROLLED_BACK)
TABLE: Final = [
    # state          event      outcome            state after
    ("unheard of",   COMMIT,    "UnknownHalf",     "unheard of"),
    ("unheard of",   ROLL_BACK, "UnknownHalf",     "unheard of"),
    ("unheard of",   look,      "-",               "unheard of"),
    ("open 0",       COMMIT,    "done",            "COMMITTED"),
    ("open 0",       ROLL_BACK, "done",            "ROLLED_BACK"),
    ("open 0",       look,      "asked",           "open 1"),
    ("open 2",       COMMIT,    "done",            "COMMITTED"),
    ("open 2",       ROLL_BACK, "done",            "ROLLED_BACK"),
    ("open 2",       look,      "asked",           "open 3"),
    ("open 3",       COMMIT,    "done",            "COMMITTED"),
    ("open 3",       ROLL_BACK, "done",            "ROLLED_BACK"),
    ("open 3",       look,      "given up",        "GIVEN_UP"),
    ("COMMITTED",    COMMIT,    "repeated",        "COMMITTED"),
    ("COMMITTED",    ROLL_BACK, "AlreadyDecided",  "COMMITTED"),
    ("COMMITTED",    look,      "-",               "COMMITTED"),
    ("ROLLED_BACK",  COMMIT,    "AlreadyDecided",  "ROLLED_BACK"),
    ("ROLLED_BACK",  ROLL_BACK, "repeated",        "ROLLED_BACK"),
    ("ROLLED_BACK",  look,      "-",               "ROLLED_BACK"),
    ("GIVEN_UP",     COMMIT,    "AlreadyDecided",  "GIVEN_UP"),
    ("GIVEN_UP",     ROLL_BACK, "AlreadyDecided",  "GIVEN_UP"),
    ("GIVEN_UP",     look,      "-",               "GIVEN_UP"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "event", "outcome", "after"), TABLE)
def test_row(state: str, event: Event, outcome: str, after: str) -> None:
    halves = in_state(state)
    assert state_of(halves) == state
    assert event(halves) == outcome
    assert state_of(halves) == after
    assert len(halves) == after.startswith("open")


def test_every_state_meets_every_event() -> None:
    states = {state for state, *_ in TABLE}
    assert {after for *_, after in TABLE} - {"open 1"} <= states
    assert len(TABLE) == len(states) * len({event for _, event, _, _ in TABLE})


# -- Time


@pytest.mark.parametrize(
    ("immunity_ms", "first_look_ms"), [(None, 1_100), (0, 1_000), (7, 1_007), (10 * OPEN_MAX, 1_000 + OPEN_MAX)]
)
def test_first_look_is_after_the_immunity(immunity_ms: int | None, first_look_ms: int) -> None:
    halves = half_messages()
    halves.prepared(OFFSET, "shop", 1_000, immunity_ms)
    assert halves.next_deadline_ms() == first_look_ms
    assert halves.due(first_look_ms - 1, 10) == []
    assert [half.offset for half in halves.due(first_look_ms, 10)] == [OFFSET]


def test_open_for_too_long_it_is_given_up_whatever_its_checks() -> None:
    halves = half_messages()
    halves.prepared(OFFSET, "shop", 1_000, OPEN_MAX - 10)
    assert look(halves) == "asked"
    assert [half.due_ms for half in halves.open()] == [1_000 + OPEN_MAX], "not an interval later"
    assert look(halves) == "given up"


def test_one_that_is_never_answered_holds_up_nobody() -> None:
    halves = half_messages()
    for offset in range(20):
        halves.prepared(offset, "gone" if offset % 4 else "shop", 1_000 + offset)
    found = halves.due(1_019 + IMMUNITY, 100)
    assert [half.offset for half in found] == list(range(20))
    halves.checked([half.offset for half in found if half.target == "gone"], 1_200)
    assert [half.offset for half in halves.due(1_200, 100)] == [0, 4, 8, 12, 16]


def test_verdict_of_long_ago_is_forgotten_and_what_is_open_is_not() -> None:
    halves = half_messages(verdicts_kept=8)
    for offset in range(20):
        halves.prepared(offset, "shop", 1_000)
        if offset != 1:
            halves.decided(offset, HalfVerdict.COMMITTED)
    with pytest.raises(UnknownHalf):
        halves.judge(11, HalfVerdict.COMMITTED)
    assert not halves.judge(12, HalfVerdict.COMMITTED)
    assert halves.judge(1, HalfVerdict.ROLLED_BACK)
    assert halves.first_offset == 1


# -- Histories

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("prepare"), st.sampled_from(["a", "b", ""]), st.sampled_from([None, None, 0, 30, 400])),
        st.tuples(
            st.just("decide"), st.integers(0, 30), st.sampled_from([HalfVerdict.COMMITTED, HalfVerdict.ROLLED_BACK])
        ),
        st.tuples(st.just("pass"), st.integers(0, 90), st.integers(1, 5)),
        st.tuples(st.just("snapshot"), st.none(), st.none()),
    ),
    max_size=120,
)


class Model:
    """The same with a dict."""

    def __init__(self) -> None:
        self.open: dict[int, list] = {}  # offset -> [stored, due, checks, target]
        self.verdicts: dict[int, HalfVerdict] = {}


@given(steps=STEPS)
def test_history_is_as_the_plainest_model_has_it_and_replays_to_the_same(steps: list[tuple]) -> None:
    halves, model, log, now_ms, end = half_messages(), Model(), [], 1_000, 0

    def apply(name: str, *arguments: object) -> None:
        log.append((name, arguments))
        getattr(halves, name)(*arguments)

    for kind, first, second in steps:
        if kind == "prepare":
            apply("prepared", end, first, now_ms, second)
            wait_ms = IMMUNITY if second is None else second
            model.open[end] = [now_ms, now_ms + wait_ms, 0, first]
            end += 1
        elif kind == "decide" and model.open:
            offset = sorted(model.open)[first % len(model.open)]
            assert halves.judge(offset, second)
            apply("decided", offset, second)
            del model.open[offset]
            model.verdicts[offset] = second
        elif kind == "pass":
            now_ms += first
            follow_looks(halves, model, now_ms, second, apply)
        elif kind == "snapshot":
            halves, log = restored(halves), []
            saved = restored(halves)
        expect_same(halves, model, end)
    replayed = half_messages() if "snapshot" not in [step[0] for step in steps] else saved
    for name, arguments in log:
        getattr(replayed, name)(*arguments)
    expect_same(replayed, model, end)


def follow_looks(halves: HalfMessages, model: Model, now_ms: int, count_max: int, apply: Callable) -> None:
    wanted = {offset for offset, (_, due_ms, _, _) in model.open.items() if due_ms <= now_ms}
    seen: set[int] = set()
    while found := halves.due(now_ms, count_max):
        assert len(found) <= count_max
        offsets = [half.offset for half in found]
        assert len(set(offsets)) == len(offsets), "checked twice in one turn"
        apply("checked", offsets, now_ms)
        for half in found:
            entry = model.open[half.offset]
            assert half == (half.offset, *entry)
            last_ms = entry[0] + OPEN_MAX
            entry[1] = min(now_ms + INTERVAL, last_ms) if last_ms > now_ms else now_ms + INTERVAL
            entry[2] += 1
        seen |= set(offsets)
    assert seen == wanted


def restored(halves: HalfMessages) -> HalfMessages:
    again = half_messages()
    again.restore_verdicts(*halves.verdicts())
    for page in halves.snapshot():
        again.restore(page)
    return again


def expect_same(halves: HalfMessages, model: Model, end: int) -> None:
    assert [tuple(half) for half in halves.open()] == [(offset, *model.open[offset]) for offset in sorted(model.open)]
    assert len(halves) == len(model.open)
    assert halves.first_offset == min(model.open, default=None)
    deadline_ms = halves.next_deadline_ms()
    if model.open:
        assert deadline_ms is not None
        assert deadline_ms <= min(due_ms for _, due_ms, _, _ in model.open.values())
    else:
        assert deadline_ms is None
    for offset in range(end):
        assert (offset in halves) == (offset in model.open)
        if offset in model.verdicts and offset >= end - 8:
            assert not halves.judge(offset, model.verdicts[offset])
    targets = [entry[3] for entry in model.open.values()]
    assert halves.counts_by_target() == {target: targets.count(target) for target in targets}


def test_pages_with_few_left_are_joined() -> None:
    halves = half_messages(page_max=64)
    for offset in range(64 * 100):
        halves.prepared(offset, "shop", 1_000)
        if offset % 64:
            halves.decided(offset, HalfVerdict.COMMITTED)
    assert len(halves) == 100
    assert len(halves._pages) <= 10
