"""Requests that wait, of both client protocols: one driver runs them all.

A handler writes a request that may have to wait as a generator. The generator yields what it waits for, gets the
outcome back, and returns the answer:

    found = yield UntilRead(later.start)             a reader thread reads
    given = yield UntilCalled(start)                 another part of the broker calls back
    yield UntilNextTurn()                            other requests have their turn of the loop
    outcome = yield Hold(keys, until_mono_ms)        the purgatory holds the request; a HoldOutcome
    return answer

The state of the broker may change at a yield and nowhere else. So code after a yield must look again at whatever it
knew before. An outcome that is an exception is raised at the yield.

    state          event                                       what the driver does
    -------------  ------------------------------------------  -------------------------------------------------------
    running        the generator yields                        waits; from the first time on, the request is unanswered
                   a wait is refused: too many reads are in    raises the refusal at the yield
                   progress
                   a wait is refused: no room to hold          goes on at once with HoldOutcome.NO_ROOM
                   the generator returns                       answers
                   the generator raises                        answers with the error; reports an unexpected exception
    waiting for a  the read, the call or the turn comes        goes on with the outcome
    read, a call   the same, but the connection has closed     closes the generator; a request that outlives its
    or a turn                                                  connection, because it changes state, goes on
    held           a queue that the request watches changes    goes on with CHANGED; the request stays in the purgatory
                                                               if the generator yields the same Hold again
                   the time is up, or a queue is deleted       goes on with EXPIRED or DELETED
                   the connection closes                       releases the request, and closes the generator

A generator that is closed runs its `finally` clauses and sends no answer. A read counts until its thread has finished,
even if the request has ended before. A request that is answered at once, which is the most frequent case, has no
driver. The queues of a held request are checked while the log is being written, so a generator that wants to append
after CHANGED must yield UntilNextTurn first.
"""

from collections.abc import Callable, Generator, Iterable
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from duolog.bridge.net.connection import Connection
from duolog.bridge.net.purgatory import Held, Purgatory
from duolog.store.errors import StoreError

ConnectionT = TypeVar("ConnectionT", bound=Connection)
ResultT = TypeVar("ResultT")

Done = Callable[[Any], None]


class UntilRead(NamedTuple):
    """Wait for a reader thread. The driver counts the read, and calls `start` with the function that takes the outcome.

    An OSError is raised at the yield as a StoreError.
    `kept_bytes` is the memory of the part of the answer that the request keeps meanwhile.
    """

    start: Callable[[Done], None]
    kept_bytes: int = 0


class UntilCalled(NamedTuple):
    """Wait for a call of the function that `start` gets. It is not counted as a read."""

    start: Callable[[Done], None]


class UntilNextTurn(NamedTuple):
    """Wait until other requests have had their turn of the loop. `kept_bytes` is as in UntilRead."""

    kept_bytes: int = 0


class Hold:
    """Wait in the purgatory for a change of one of the queues with these keys, or for the time. Compared by identity.

    `extra_bytes` is the memory of the request besides itself and the queues that it watches. `label` says to others
    which request is held.
    """

    __slots__ = ("extra_bytes", "keys", "label", "until_mono_ms")

    def __init__(self, keys: Iterable[int], until_mono_ms: int, extra_bytes: int = 0, label: object = None) -> None:
        self.keys, self.until_mono_ms, self.extra_bytes, self.label = keys, until_mono_ms, extra_bytes, label


class HoldOutcome(Enum):
    """Why a held request goes on."""

    CHANGED = 0  # A queue has changed: records became visible, or may be popped again.
    EXPIRED = 1  # The time is up.
    DELETED = 2  # A queue was deleted.
    NO_ROOM = 3  # The request was not held, because that would exceed a limit of the purgatory.


Wait = UntilRead | UntilCalled | UntilNextTurn | Hold
WaitingSteps = Generator[Wait, Any, ResultT]

_WAITS: Final = object()  # The outcome of a wait that has only begun.


class RequestDriver(Generic[ConnectionT, ResultT]):
    """Drives one request from its first wait to its answer. A subclass for each client protocol counts and answers.

    The class implements `purgatory.Waiting`.
    """

    __slots__ = ("_held", "_hold", "_outlives_connection", "_purgatory", "_steps", "connection")

    def __init__(
        self,
        connection: ConnectionT,
        purgatory: Purgatory,
        steps: WaitingSteps[ResultT],
        outlives_connection: bool,
    ) -> None:
        """`outlives_connection`: the steps go on after the connection has closed; they must not yield a Hold."""
        self.connection, self._purgatory, self._steps = connection, purgatory, steps
        self._outlives_connection = outlives_connection
        self._hold: Hold | None = None
        self._held: Held | None = None  # Invariant: None if `_hold` is None; else the connection has it in `held`.

    # -- What a subclass does

    def _begin_read(self) -> None:
        """Count a read that begins; may raise a refusal."""

    def _end_read(self) -> None:
        """Count a read that has ended."""

    def _keep_waiting(self, kept_bytes: int) -> None:
        """Count the request as unanswered, if this is its first wait, and the bytes that it keeps of its answer."""
        raise NotImplementedError

    def _check(self) -> None:
        """Raise an error if the request may not go on, because a right was taken away while it waited."""

    def _go_on_in_next_turn(self) -> None:
        """Have `_go_on(None)` called in another turn of the loop."""
        raise NotImplementedError

    def _finish(self, result: ResultT) -> None:
        """Answer the request."""
        raise NotImplementedError

    def _fail(self, error: Exception) -> None:
        """Answer the request with an error, and report an unexpected exception."""
        raise NotImplementedError

    # -- Waiting

    @property
    def label(self) -> object:
        """The label of the Hold while the request is held; else None."""
        return self._hold.label if self._hold is not None else None

    def begin(self, wait: Wait) -> ResultT | None:
        """Begin to wait for what the generator yielded first.

        Returns the result if each wait is refused and the generator ends; None: the driver will answer.
        Raises what the generator raises.
        """
        outcome = self._wait(wait)
        return None if outcome is _WAITS else self._run(outcome)

    def _run(self, outcome: Any) -> ResultT | None:
        """Run the generator until it waits (None) or returns."""
        steps = self._steps
        while outcome is not _WAITS:
            try:
                wait = steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)
            except StopIteration as end:
                result: ResultT = end.value
                return result
            outcome = self._wait(wait)
        return None

    def _wait(self, wait: Wait) -> Any:
        """Begin to wait, and return _WAITS; or return the outcome of a wait that is refused."""
        if wait is self._hold:
            return _WAITS
        if self._held is not None:
            self._leave_purgatory()
        if isinstance(wait, Hold):
            held = self._purgatory.hold(
                self, wait.keys, wait.until_mono_ms, self.connection, extra_bytes=wait.extra_bytes
            )
            if held is None:
                return HoldOutcome.NO_ROOM
            self._hold, self._held = wait, held
            self.connection.held.add(self)
            self._keep_waiting(0)
        elif isinstance(wait, UntilRead):
            try:
                self._begin_read()
            except Exception as refusal:  # noqa: BLE001 - raised again at the yield
                return refusal
            self._keep_waiting(wait.kept_bytes)
            wait.start(self._read)
        elif isinstance(wait, UntilCalled):
            self._keep_waiting(0)
            wait.start(self._go_on)
        else:
            self._keep_waiting(wait.kept_bytes)
            self._go_on_in_next_turn()
        return _WAITS

    def _leave_purgatory(self) -> None:
        if self._held is not None:
            self._purgatory.release(self._held)
            self.connection.held.discard(self)
            self._hold = self._held = None

    # -- Going on

    def _read(self, outcome: Any) -> None:
        self._end_read()
        self._go_on(StoreError(str(outcome)) if isinstance(outcome, OSError) else outcome)

    def _go_on(self, outcome: Any) -> None:
        """Run the generator with the outcome of a wait, and answer if it ends. Raises no exception of the generator."""
        if self.connection.closed and not self._outlives_connection:
            self.connection_closed()
            return
        try:
            self._check()
            result = self._run(outcome)
        except Exception as error:  # noqa: BLE001 - `_fail` reports faults
            self._leave_purgatory()
            self._steps.close()
            self._fail(error)
            return
        if result is not None:
            self._leave_purgatory()
            self._finish(result)

    def connection_closed(self) -> None:
        """End without an answer."""
        self._leave_purgatory()
        self._steps.close()

    # -- What the purgatory calls

    def try_complete(self) -> bool:
        """Go on because a queue has changed; false if the request is still held."""
        held = self._held
        self._go_on(HoldOutcome.CHANGED)
        return self._held is not held

    def expire(self) -> None:
        """Go on because the time is up."""
        self._leave_purgatory()
        self._go_on(HoldOutcome.EXPIRED)

    def deleted(self) -> None:
        """Go on because a queue was deleted."""
        self._leave_purgatory()
        self._go_on(HoldOutcome.DELETED)

    def fail(self, error: Exception) -> None:
        """End with an error of the driver itself."""
        self._leave_purgatory()
        self._steps.close()
        self._fail(error)
