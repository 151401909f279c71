"""The transaction coordinator: how requests are matched and decided, then random histories against plain tables."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.txn.coordinator import (
    EPOCH_LAST,
    TABLE,
    Coordinator,
    Producer,
    ProducerMatch,
    RequestOutcome,
    State,
    Transaction,
    TransactionRequest,
)

INIT, RESUME, WRITE = TransactionRequest.INIT, TransactionRequest.RESUME, TransactionRequest.WRITE
COMMIT, ABORT, BROKER_ABORT = TransactionRequest.COMMIT, TransactionRequest.ABORT, TransactionRequest.BROKER_ABORT
COMMIT_RENEW, ABORT_RENEW = TransactionRequest.COMMIT_RENEW, TransactionRequest.ABORT_RENEW
TIMEOUT = 100


def transaction(state: State, previous: Producer | None = None) -> Transaction[Any]:
    return Transaction("id", Producer(5, 3), TIMEOUT, state, previous)


@pytest.mark.parametrize(
    ("producer", "previous", "request_", "match"),
    [
        (Producer(5, 3), None, WRITE, ProducerMatch.CURRENT),
        (Producer(5, 2), None, WRITE, ProducerMatch.FENCED),
        (Producer(5, 2), None, COMMIT, ProducerMatch.FENCED),
        (Producer(5, 2), None, COMMIT_RENEW, ProducerMatch.PREVIOUS),
        (Producer(5, 2), None, ABORT_RENEW, ProducerMatch.PREVIOUS),
        (Producer(5, 1), None, ABORT_RENEW, ProducerMatch.FENCED),
        (Producer(5, 4), None, WRITE, ProducerMatch.FENCED),  # An epoch that was never given.
        (Producer(5, 2), Producer(5, 2), RESUME, ProducerMatch.PREVIOUS),
        (Producer(4, EPOCH_LAST), Producer(4, EPOCH_LAST), RESUME, ProducerMatch.PREVIOUS),  # The id changed, too.
        (Producer(4, 3), None, WRITE, ProducerMatch.UNKNOWN),
        (Producer(4, 2), None, ABORT_RENEW, ProducerMatch.UNKNOWN),
    ],
)
def test_request_is_matched_by_producer_id_and_epoch(
    producer: Producer, previous: Producer | None, request_: TransactionRequest, match: ProducerMatch
) -> None:
    assert transaction(State.EMPTY, previous).match(producer, request_) is match


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("request_", TransactionRequest)
def test_only_the_newest_producer_changes_anything(request_: TransactionRequest, state: State) -> None:
    known = transaction(state, previous=Producer(5, 2))
    refusal = RequestOutcome.FENCED if request_ is RESUME else RequestOutcome.UNKNOWN
    assert known.judge(request_, Producer(4, 3)) is refusal
    assert known.judge(request_, Producer(5, 1)) is RequestOutcome.FENCED
    changes = {
        RequestOutcome.RENEW,
        RequestOutcome.COMMIT,
        RequestOutcome.ABORT,
        RequestOutcome.COMMIT_RENEW,
        RequestOutcome.ABORT_RENEW,
        RequestOutcome.BEGIN,
    }
    assert known.judge(request_, Producer(5, 2)) not in changes
    assert known.judge(request_) is TABLE.get((request_, ProducerMatch.CURRENT, state), RequestOutcome.FENCED)


@pytest.mark.parametrize("request_", [COMMIT, ABORT, COMMIT_RENEW, ABORT_RENEW])
def test_a_repeated_end_is_answered_again_and_the_opposite_one_is_refused(request_: TransactionRequest) -> None:
    """Carry out an end, then send it again, then the opposite one, each as its own protocol version does."""
    is_commit, renews = request_ in (COMMIT, COMMIT_RENEW), request_ in (COMMIT_RENEW, ABORT_RENEW)
    opposite = {COMMIT: ABORT, ABORT: COMMIT, COMMIT_RENEW: ABORT_RENEW, ABORT_RENEW: COMMIT_RENEW}[request_]
    coordinator, sent = Coordinator[Any](), Producer(5, 3)
    coordinator.set_state("id", sent, TIMEOUT, State.EMPTY, None, 0)
    known = coordinator.get("id")
    assert known is not None
    coordinator.begin(known, 10)
    assert known.judge(request_, sent).name == request_.name
    after = Producer(5, 4) if renews else sent
    state = State.COMMITTED if is_commit else State.ABORTED
    coordinator.set_state("id", after, TIMEOUT, state, sent if renews else None, 20)
    assert known.judge(request_, sent) is RequestOutcome.REPEAT
    assert known.judge(opposite, sent) is RequestOutcome.INVALID_STATE


def test_producer_of_a_transaction_that_took_too_long_is_fenced_but_may_abort() -> None:
    known = transaction(State.ONGOING)
    assert known.judge(BROKER_ABORT) is RequestOutcome.ABORT_RENEW
    known.producer, known.state = Producer(5, 4), State.ABORTED
    assert known.judge(WRITE, Producer(5, 3)) is RequestOutcome.FENCED
    assert known.judge(ABORT_RENEW, Producer(5, 3)) is RequestOutcome.REPEAT
    assert known.judge(COMMIT_RENEW, Producer(5, 3)) is RequestOutcome.INVALID_STATE


# -- Histories


@dataclass
class Open:
    began_ms: int
    keys: set[int] = field(default_factory=set)
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)


@dataclass
class Model:
    """What the coordinator must answer, kept without any table beside it."""

    changed_ms: dict[str, int] = field(default_factory=dict)  # In the order of the last change.
    open: dict[str, Open] = field(default_factory=dict)


NAMES, GROUPS, KEYS = ("a", "b"), ("g", "h"), (1, 2, 3)
SOME_KEYS = st.sets(st.sampled_from(KEYS))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("settle"), st.sampled_from(NAMES)),
        st.tuples(st.just("begin"), st.sampled_from(NAMES)),
        st.tuples(st.just("queues"), st.sampled_from(NAMES), st.sets(st.sampled_from(KEYS))),
        st.tuples(st.just("offsets"), st.sampled_from(NAMES), st.sampled_from(GROUPS), st.sets(st.sampled_from(KEYS))),
        st.tuples(st.just("forget"), st.sampled_from(NAMES)),
        st.tuples(st.just("forget group"), st.sampled_from(GROUPS)),
        st.tuples(st.just("forget queue"), st.sampled_from(NAMES), st.sampled_from(KEYS)),
        st.tuples(st.just("jump"), st.integers(-50, 50)),
        st.tuples(st.just("no later than now"), st.none()),
    ),
    min_size=10,
    max_size=40,
)


@given(STEPS)
def test_tables_answer_as_the_history_says(steps: list[tuple[Any, ...]]) -> None:
    coordinator, model, changed = Coordinator[int](), Model(), set[str]()
    coordinator.before_change = changed.add
    now_ms = 1000
    for what, name, *more in [*((what, name) for name in NAMES for what in ("settle", "begin")), *steps]:
        now_ms += 10
        known, opened = coordinator.get(name), model.open.get(name)
        number = NAMES.index(name) if name in NAMES else -1
        if what == "settle":
            coordinator.set_state(name, Producer(number, 0), TIMEOUT + number, State.COMMITTED, None, now_ms)
            model.open.pop(name, None)
            model.changed_ms.pop(name, None)
            model.changed_ms[name] = now_ms
        elif what == "begin" and known is not None:
            coordinator.begin(known, now_ms)
            model.open.setdefault(name, Open(now_ms))
        elif what == "queues" and known is not None and opened is not None:
            coordinator.add_queues(known, more[0])
            opened.keys |= more[0]
        elif what == "offsets" and known is not None and opened is not None:
            coordinator.add_offsets(known, more[0], [(key, now_ms) for key in more[1]])
            opened.offsets.setdefault(more[0], {}).update(dict.fromkeys(more[1], now_ms))
        elif what == "forget":
            coordinator.forget(name)
            model.changed_ms.pop(name, None)
            model.open.pop(name, None)
        elif what == "forget group":
            coordinator.forget_group(name)
            for each in model.open.values():
                each.offsets.pop(name, None)
        elif what == "forget queue":
            coordinator.forget_queues(number, lambda key, gone=more[0]: key == gone)
            if opened is not None:
                opened.keys.discard(more[0])
                for offsets in opened.offsets.values():
                    offsets.pop(more[0], None)
        elif what == "jump":
            coordinator.clock_stepped(name)
            for each in model.open.values():
                each.began_ms += name
        elif what == "no later than now":
            assert sum(coordinator.clock_was_set_back(now_ms)) == len(model.open)
            for each in model.open.values():
                each.began_ms = min(each.began_ms, now_ms)
        check(coordinator, model, now_ms)
    assert changed >= set(model.changed_ms)


def check(coordinator: Coordinator[int], model: Model, now_ms: int) -> None:
    assert [*coordinator.names] == [*model.changed_ms]
    found = {each.name: (each.started_ms, each.keys, each.offsets) for each in coordinator.open}
    assert found == {name: (each.began_ms, each.keys, each.offsets) for name, each in model.open.items()}
    assert coordinator.queue_count == sum(len(each.keys) for each in model.open.values())
    groups = [offsets for each in model.open.values() for offsets in each.offsets.values()]
    assert coordinator.pending_count == sum(1 + len(offsets) for offsets in groups)
    for group in GROUPS:
        keys = [each.offsets[group] for each in model.open.values() if group in each.offsets]
        assert coordinator.has_group(group) is bool(keys)
        assert coordinator.pending(group) == frozenset(key for offsets in keys for key in offsets)
    deadlines = {name: each.began_ms + TIMEOUT + NAMES.index(name) for name, each in model.open.items()}
    assert coordinator.next_deadline_ms() == min(deadlines.values(), default=None)
    before_ms = now_ms - 100
    idle = [name for name, at_ms in model.changed_ms.items() if at_ms <= before_ms and name not in model.open]
    assert coordinator.idle_since(before_ms, 10) == idle


def test_overdue_transactions_come_by_their_deadlines_while_each_is_ended() -> None:
    coordinator, ended = Coordinator[int](), list[str]()
    for number, (name, began_ms) in enumerate((("a", 30), ("b", 10), ("c", 20), ("d", 200))):
        coordinator.set_state(name, Producer(number, 0), TIMEOUT, State.EMPTY, None, 0)
        known = coordinator.get(name)
        assert known is not None
        coordinator.begin(known, began_ms)
    for known in coordinator.overdue(now_ms=130):
        ended.append(known.name)
        coordinator.set_state(known.name, Producer(known.producer.id, 1), TIMEOUT, State.ABORTED, None, 130)
    assert ended == ["b", "c", "a"]
    assert coordinator.next_deadline_ms() == 300
