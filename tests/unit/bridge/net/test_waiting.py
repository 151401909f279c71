"""Proves that a request that waits ends exactly once and leaves nothing behind: each wait alone, then random histories.

Time is an argument, and reader threads are callbacks that the test keeps.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from duolog.bridge.net.purgatory import HELD_QUEUE_BYTES, HELD_REQUEST_BYTES, Purgatory
from duolog.bridge.net.waiting import (
    Hold,
    HoldOutcome,
    RequestDriver,
    UntilCalled,
    UntilNextTurn,
    UntilRead,
    Wait,
    WaitingSteps,
)
from duolog.store.errors import StoreError
from tests.kit.rows import first_in_unit

KEYS = range(4)


@dataclass(eq=False)
class Client:
    """A connection, as far as the driver uses one."""

    closed: bool = False
    held: set[Any] = field(default_factory=set)
    held_bytes: int = 0

    def close(self) -> None:
        self.closed = True
        for request in list(self.held):
            request.connection_closed()


class Bug(Exception):
    """An unexpected exception."""


class Busy(Exception):
    """There are too many reads."""


class Broker:
    """Counts what the drivers of both client protocols count, and keeps the answers."""

    def __init__(self, reads_max: int = 1_000, purgatory: Purgatory | None = None) -> None:
        self.purgatory = purgatory if purgatory is not None else Purgatory()
        self.reads_max = reads_max
        self.reads = 0  # That have begun and not ended.
        self.kept: list[int] = []  # The arguments of `_keep_waiting`.
        self.turns: list[Callable[[], None]] = []
        self.answers: list[object] = []  # Results and errors.

    def run(self, client: Client, steps: WaitingSteps[str], *, outlives: bool = False) -> "Driver":
        driver = Driver(self, client, steps, outlives=outlives)
        try:
            result = driver.begin(next(steps))
        except Exception as error:  # noqa: BLE001 - what a handler's caller does
            self.answers.append(error)
        else:
            if result is not None:
                self.answers.append(result)
        return driver

    def take_turns(self) -> None:
        turns, self.turns = self.turns, []
        for turn in turns:
            turn()


class Driver(RequestDriver[Any, str]):
    """Drives one request of a Broker."""

    def __init__(self, broker: Broker, client: Client, steps: WaitingSteps[str], *, outlives: bool) -> None:
        super().__init__(client, broker.purgatory, steps, outlives_connection=outlives)
        self._broker = broker

    def _begin_read(self) -> None:
        if self._broker.reads >= self._broker.reads_max:
            raise Busy
        self._broker.reads += 1

    def _end_read(self) -> None:
        self._broker.reads -= 1

    def _keep_waiting(self, kept_bytes: int) -> None:
        self._broker.kept.append(kept_bytes)

    def _go_on_in_next_turn(self) -> None:
        self._broker.turns.append(lambda: self._go_on(None))

    def _finish(self, result: str) -> None:
        self._broker.answers.append(result)

    def _fail(self, error: Exception) -> None:
        self._broker.answers.append(error)


class Thread:
    """A reader thread, or another part that calls back: `done` is called when the test says so."""

    def __init__(self) -> None:
        self.done: Callable[[Any], None] | None = None

    def start(self, done: Callable[[Any], None]) -> None:
        self.done = done

    def end(self, outcome: object) -> None:
        assert self.done is not None
        self.done(outcome)


def one(wait: Wait, ended: list[str] | None = None) -> WaitingSteps[str]:
    """Wait once, and answer with the outcome."""
    try:
        outcome = yield wait
    finally:
        if ended is not None:
            ended.append("ended")
    return f"got {outcome}"


# -- Each wait alone


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        ("records", "got records"),
        (None, "got None"),
        (StoreError("lost"), "StoreError('lost')"),
        (OSError("bad sector"), "StoreError('bad sector')"),
    ],
)
def test_read_gives_its_outcome_or_raises_it(outcome: object, answer: str) -> None:
    broker, thread = Broker(), Thread()
    broker.run(Client(), one(UntilRead(thread.start, 70)))
    assert (broker.reads, broker.kept, broker.answers) == (1, [70], [])
    thread.end(outcome)
    (given,) = broker.answers
    assert (given if isinstance(given, str) else repr(given), broker.reads) == (answer, 0)


def test_read_that_is_refused_raises_at_the_yield() -> None:
    broker, thread = Broker(reads_max=0), Thread()

    def steps() -> WaitingSteps[str]:
        try:
            yield UntilRead(thread.start)
        except Busy:
            return "busy"
        return "read"

    broker.run(Client(), steps())
    broker.run(Client(), one(UntilRead(thread.start)))
    assert broker.answers[0] == "busy"
    assert isinstance(broker.answers[1], Busy)
    assert (thread.done, broker.kept) == (None, []), "a request that never waited is not counted as unanswered"


def test_call_counts_as_no_read() -> None:
    broker, thread = Broker(reads_max=0), Thread()
    broker.run(Client(), one(UntilCalled(thread.start)))
    thread.end("pong")
    assert broker.answers == ["got pong"]


def test_call_that_comes_at_once_is_answered_once() -> None:
    broker = Broker()
    broker.run(Client(), one(UntilCalled(lambda done: done("at once"))))
    assert (broker.answers, broker.kept) == (["got at once"], [0])


def test_other_requests_have_their_turn() -> None:
    broker = Broker()
    for _ in range(2):
        broker.run(Client(), one(UntilNextTurn(8)))
    assert (broker.answers, broker.kept) == ([], [8, 8])
    broker.take_turns()
    assert broker.answers == ["got None"] * 2


def test_held_request_stays_held_until_it_has_enough() -> None:
    broker, client, seen = Broker(), Client(), []

    def steps() -> WaitingSteps[str]:
        hold = Hold([1, 2], 500, extra_bytes=100, label="pop")
        while (outcome := (yield hold)) is HoldOutcome.CHANGED:
            seen.append(outcome)
            if len(seen) == 3:
                return "enough"
        return "never"

    driver = broker.run(client, steps())
    assert client.held_bytes == broker.purgatory.held_bytes == HELD_REQUEST_BYTES + 2 * HELD_QUEUE_BYTES + 100
    for key in (1, 3, 2):
        broker.purgatory.check([key])
        assert (client.held, driver.label, broker.answers) == ({driver}, "pop", [])
    broker.purgatory.check([1, 2])
    assert (broker.answers, client.held, client.held_bytes, len(broker.purgatory)) == (["enough"], set(), 0, 0)
    assert driver.label is None
    assert broker.kept == [0], "a request that stays held costs nothing"


@pytest.mark.parametrize(
    ("end", "answer"),
    [
        (lambda purgatory: purgatory.advance(500), "got HoldOutcome.EXPIRED"),
        (lambda purgatory: purgatory.on_deleted([1]), "got HoldOutcome.DELETED"),
        (lambda purgatory: purgatory.check([1]), "got HoldOutcome.CHANGED"),
    ],
)
def test_held_request_ends(end: Callable[[Purgatory], None], answer: str) -> None:
    broker, client = Broker(), Client()
    broker.run(client, one(Hold([1, 2], 500)))
    broker.purgatory.advance(499)
    assert broker.answers == []
    for _ in range(2):
        end(broker.purgatory)
    assert (broker.answers, client.held, client.held_bytes, len(broker.purgatory)) == ([answer], set(), 0, 0)


@pytest.mark.parametrize("end", [lambda purgatory: purgatory.advance(500), lambda purgatory: purgatory.on_deleted([1])])
def test_request_that_has_left_the_purgatory_is_held_anew(end: Callable[[Purgatory], None]) -> None:
    broker, client = Broker(), Client()

    def steps() -> WaitingSteps[str]:
        hold = Hold([1], 500)
        yield hold
        return f"got {(yield hold)}"

    broker.run(client, steps())
    end(broker.purgatory)
    assert (broker.answers, len(client.held), len(broker.purgatory)) == ([], 1, 1)
    broker.purgatory.check([1])
    assert (broker.answers, len(broker.purgatory)) == (["got HoldOutcome.CHANGED"], 0)


def test_request_without_room_to_be_held_goes_on_at_once() -> None:
    broker, client = Broker(purgatory=Purgatory(HELD_REQUEST_BYTES + HELD_QUEUE_BYTES)), Client()
    broker.run(client, one(Hold([1], 500)))
    broker.run(client, one(Hold([2], 500)))
    assert (broker.answers, broker.kept, len(client.held)) == (["got HoldOutcome.NO_ROOM"], [0], 1)


def test_request_that_reads_after_a_change_is_held_again() -> None:
    broker, client, thread = Broker(), Client(), Thread()

    def steps() -> WaitingSteps[str]:
        hold = Hold([1], 500)
        yield hold
        found = yield UntilRead(thread.start, 9)
        assert (yield hold) is HoldOutcome.EXPIRED
        return f"got {found}"

    broker.run(client, steps())
    broker.purgatory.check([1])
    assert (len(broker.purgatory), client.held, broker.reads) == (0, set(), 1)
    thread.end("too little")
    assert (len(broker.purgatory), broker.kept) == (1, [0, 9, 0])
    broker.purgatory.advance(500)
    assert broker.answers == ["got too little"]


# -- Ends without an answer, and faults


def test_closed_connection_ends_its_held_requests() -> None:
    broker, client, other, ended = Broker(), Client(), Client(), list[str]()
    broker.run(client, one(Hold([1], 500), ended))
    broker.run(other, one(Hold([1], 500)))
    client.close()
    assert (ended, client.held_bytes, len(broker.purgatory)) == (["ended"], 0, 1)
    broker.purgatory.check([1])
    assert broker.answers == ["got HoldOutcome.CHANGED"], "of the other client"


@pytest.mark.parametrize(("outlives", "answers"), [(False, []), (True, ["got records"])])
def test_read_of_a_closed_connection_counts_until_its_thread_ends(outlives: bool, answers: list[str]) -> None:
    broker, client, thread, ended = Broker(), Client(), Thread(), list[str]()
    broker.run(client, one(UntilRead(thread.start), ended), outlives=outlives)
    client.close()
    assert (broker.reads, ended) == (1, [])
    thread.end("records")
    assert (broker.reads, ended, broker.answers) == (0, ["ended"], answers)


@pytest.mark.parametrize("is_held", [False, True])
def test_fault_is_answered_once_and_leaves_nothing(is_held: bool) -> None:
    broker, client, bug = Broker(), Client(), Bug()

    def steps() -> WaitingSteps[str]:
        yield Hold([1], 500) if is_held else UntilNextTurn()
        raise bug

    broker.run(client, steps())
    broker.run(client, one(Hold([1], 500)))
    broker.take_turns()
    broker.purgatory.check([1])
    assert Counter(map(str, broker.answers)) == Counter([str(bug), "got HoldOutcome.CHANGED"])
    assert (client.held, len(broker.purgatory)) == (set(), 0)


# -- Random histories


class History:
    """Requests that wait for random things, while clients close, queues change and are deleted, and time passes."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.broker = Broker(reads_max=4, purgatory=Purgatory(10 * HELD_REQUEST_BYTES, 5 * HELD_REQUEST_BYTES))
        self.clients = [Client() for _ in range(4)]
        self.threads: list[Thread] = []
        self.mono_ms = 0
        self.begun: dict[int, Client] = {}
        self.ended: list[int] = []  # Requests whose generators have ended, for whatever reason.

    def steps(self, number: int) -> WaitingSteps[str]:
        rng = self.rng
        try:
            for _ in range(rng.randrange(1, 6)):
                try:
                    outcome = yield self.wait()
                except (StoreError, Busy) as error:
                    outcome = error
                if rng.random() < 0.05:
                    raise Bug(f"{number}: {outcome}")
        finally:
            self.ended.append(number)
        return f"{number}"

    def wait(self) -> Wait:
        kind = self.rng.randrange(4)
        if kind == 0:
            return UntilNextTurn(self.rng.randrange(9))
        if kind == 1:
            keys = self.rng.sample(KEYS, self.rng.randrange(1, 4))
            return Hold(keys, self.mono_ms + self.rng.randrange(300))
        thread = Thread()
        self.threads.append(thread)
        return UntilRead(thread.start) if kind == 2 else UntilCalled(thread.start)

    def step(self) -> None:
        rng, broker = self.rng, self.broker
        move = rng.randrange(8)
        if move < 2:
            open_clients = [client for client in self.clients if not client.closed]
            client, number = rng.choice(open_clients), len(self.begun)
            self.begun[number] = client
            broker.run(client, self.steps(number))
        elif move < 4:
            self.end_threads(rng.randrange(3))
        elif move == 4:
            broker.purgatory.check(rng.sample(KEYS, 2))
        elif move == 5:
            broker.take_turns()
        elif move == 6:
            self.mono_ms += rng.randrange(100)
            broker.purgatory.advance(self.mono_ms)
        elif rng.random() < 0.2:
            broker.purgatory.on_deleted([rng.choice(KEYS)])
        elif rng.random() < 0.1:
            rng.choice(self.clients).close()
            self.clients.append(Client())

    def end_threads(self, count: int) -> None:
        for thread in self.rng.sample(self.threads, min(count, len(self.threads))):
            self.threads.remove(thread)
            if thread.done is not None:  # None: the read was refused.
                thread.end(self.rng.choice(["records", StoreError("lost"), None]))

    def settle(self) -> None:
        while len(self.ended) < len(self.begun):
            self.end_threads(len(self.threads))
            self.broker.take_turns()
            self.mono_ms += 300
            self.broker.purgatory.advance(self.mono_ms)


@pytest.mark.parametrize("seed", first_in_unit(range(60), 20))
def test_each_request_ends_once_and_leaves_nothing(seed: int) -> None:
    history = History(seed)
    broker = history.broker
    for _ in range(300):
        history.step()
        held = [request for client in history.clients for request in client.held]
        assert len(held) == len(broker.purgatory)
        assert broker.purgatory.held_bytes == sum(client.held_bytes for client in history.clients)
    history.settle()
    assert sorted(history.ended) == [*history.begun], "each generator ended, once"
    answered = Counter(int(str(answer).partition(":")[0]) for answer in broker.answers)
    assert set(answered.values()) == {1}, "no request is answered twice"
    assert all(number in answered or client.closed for number, client in history.begun.items())
    assert (broker.reads, broker.turns, len(broker.purgatory), broker.purgatory.held_bytes) == (0, [], 0, 0)
