"""Connections and their bounds: on a transport with a chosen capacity, a loop turned by hand, a log that keeps on
demand. The protocol here answers each frame with itself, at once, after the log, or when the test says so.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.bridge.config import LimitsOptions
from duolog.bridge.monitoring.repeated_lines import QUIET_MS
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.bridge.net.answer_buffer import SLICE_BYTES, joined
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import FRAMES_AT_ONCE, TURN_MS, Connection
from duolog.bridge.net.connections import SWEEP_INTERVAL_MS, Bounds
from duolog.bridge.net.ordered_outbox import OrderedOutbox, OutboxSlot
from duolog.bridge.net.server import Server
from duolog.protocol.errors import ProtocolError
from duolog.store.entry import Promise
from duolog.store.errors import StoreError, WritingEnded
from tests.kit.clock import ManualClock
from tests.kit.faults import StrictFaults
from tests.kit.sockets import FakeTransport, ManualLoop, connect

Done = Callable[[StoreError | None], None]


class LogOnDemand:
    """Keeps promises up to `end` when the test calls it."""

    def __init__(self) -> None:
        self.end = 0
        self.waiting: list[tuple[int, Done]] = []

    def kept(self, promise: Promise) -> bool:
        return promise.end <= self.end

    def when(self, promise: Promise, done: Done) -> None:
        self.waiting.append((promise.end, done))

    def keep(self, end: int, error: StoreError | None = None) -> None:
        self.end = end if error is None else self.end
        due = [done for at, done in self.waiting if at <= end]
        self.waiting = [(at, done) for at, done in self.waiting if at > end]
        for done in due:
            done(error)


class Parrot(Connection):
    """Says every frame again: `!` at once, `<n>` once the log keeps position n, `?` when the test fills its slot."""

    wire = "parrot"

    def __init__(self, broker: Any) -> None:
        super().__init__(broker.server, broker.store)
        self.outbox = OrderedOutbox(self)
        self.slots: list[OutboxSlot] = []

    def received(self, frame: memoryview) -> None:
        text = bytes(frame)
        if text == b"garbage":
            raise ProtocolError("garbage")
        if text.startswith(b"?"):
            self.slots.append(self.outbox.reserve())
        else:
            self.outbox.add(answer(text))


class Eager(Parrot):
    """The same, with answers that leave as they are ready."""

    def received(self, frame: memoryview) -> None:
        given = answer(bytes(frame))
        if given.promise is None:
            self.answers.write(given.buffers)
        else:
            self.log.when(given.promise, lambda error: self._released(given, error))

    def _released(self, given: Answer, error: StoreError | None) -> None:
        if error is None:
            self.answers.write(given.buffers)
        else:
            self.close(str(error))


def answer(text: bytes) -> Answer:
    return Answer([text], Promise(int(text), True) if text.isdigit() else None)


def frames(*texts: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(text)) + text for text in texts)


class Bench:
    """One server, and what it takes to talk to it."""

    def __init__(self, **limits: int) -> None:
        self.loop, self.clock, self.log = ManualLoop(), ManualClock(), LogOnDemand()
        self.turns = 0
        bounds = {"parrot": Bounds(frame_bytes_max=1 << 20, unanswered_max=4, idle_ms=60_000)}
        self.faults = StrictFaults(self.clock.mono_ms, print)
        self.server = Server(
            cast(Any, self.loop), self.clock, LimitsOptions(**limits), bounds, self._end_turn, self.faults, Watchdog()
        )
        self.broker = SimpleNamespace(server=self.server, store=self.log, faults=self.faults)

    def _end_turn(self) -> None:
        self.turns += 1

    def connect(self, kind: type[Parrot] = Parrot) -> tuple[Parrot, FakeTransport]:
        connection = kind(self.broker)
        transport = connect(connection, self.loop)
        self.loop.turn()
        return connection, transport

    def sweep_after(self, ms: int) -> None:
        """Let time pass, with sweeps as often as they are due."""
        while ms > 0:
            step_ms = min(ms, SWEEP_INTERVAL_MS)
            self.clock.pass_ms(step_ms)
            ms -= step_ms
            due_mono_ms = self.server.connections.next_deadline_ms()
            if due_mono_ms is not None and due_mono_ms <= self.clock.mono_ms():
                self.server.connections.sweep(self.clock.mono_ms())
                self.loop.turn()


# -- Answering


def test_all_answers_of_a_turn_leave_in_one_write_at_its_end() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    connection.data_received(frames(b"!a", b"!b"))
    connection.data_received(frames(b"!c"))
    assert transport.taken == b""
    bench.loop.turn()
    assert (transport.taken, transport.write_calls) == (b"!a!b!c", 1)


def test_ordered_answers_wait_for_those_before_them() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    connection.data_received(frames(b"?", b"7", b"!x"))
    bench.log.keep(7)
    bench.loop.turn()
    assert transport.taken == b""
    connection.outbox.fill(connection.slots[0], answer(b"first"))
    bench.loop.turn()
    assert transport.taken == b"first7!x"


def test_request_without_answer_gives_its_place_up() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    connection.data_received(frames(b"?", b"!x"))
    connection.outbox.fill(connection.slots[0], None)
    bench.loop.turn()
    assert transport.taken == b"!x"


def test_unordered_answers_leave_as_they_are_ready() -> None:
    bench = Bench()
    connection, transport = bench.connect(Eager)
    connection.data_received(frames(b"9", b"3", b"!x"))
    bench.loop.turn()
    bench.log.keep(3)
    bench.loop.turn()
    bench.log.keep(9)
    bench.loop.turn()
    assert transport.taken == b"!x39"


@pytest.mark.parametrize("kind", [Parrot, Eager])
def test_answer_that_the_log_cannot_keep_closes_the_connection(kind: type[Parrot]) -> None:
    bench = Bench()
    connection, transport = bench.connect(kind)
    connection.data_received(frames(b"5"))
    bench.log.keep(5, WritingEnded("fsync failed"))
    bench.loop.turn()
    assert connection.closed
    assert transport.taken == b""


@given(st.lists(st.sampled_from([b"!a", b"1", b"2", b"3", b"?"]), max_size=12), st.randoms(use_true_random=False))
def test_ordered_answers_leave_in_request_order_whatever_gets_ready_when(texts: list[bytes], chance: Any) -> None:
    bench = Bench()
    bench.server.bounds["parrot"] = Bounds(1 << 20, 100, 60_000)
    connection, transport = bench.connect()
    connection.data_received(frames(*texts))
    steps: list[Callable[[], None]] = [lambda end=end: bench.log.keep(end) for end in (1, 2, 3)]  # type: ignore[misc]
    steps += [lambda slot=slot: connection.outbox.fill(slot, answer(b"?")) for slot in connection.slots]  # type: ignore[misc]
    chance.shuffle(steps)
    for step in steps:
        step()
        bench.loop.turn()
        assert b"".join(texts).startswith(transport.taken)
    bench.log.keep(3)
    bench.loop.turn()
    assert transport.taken == b"".join(texts)
    assert (connection.unanswered, bench.server.connections.answer_bytes) == (0, 0)


@given(st.lists(st.integers(0, 2 * SLICE_BYTES), max_size=8))
def test_joining_keeps_bytes_and_large_pieces(sizes: list[int]) -> None:
    pieces = [bytes([at]) * size for at, size in enumerate(sizes)]
    out = joined(pieces)
    assert b"".join(out) == b"".join(pieces)
    assert [piece for piece in out if len(piece) >= SLICE_BYTES and piece in pieces] == [
        piece for piece in pieces if len(piece) >= SLICE_BYTES
    ]


# -- Back-pressure


def test_too_many_unanswered_requests_stop_reading_until_half_are_answered() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    connection.data_received(frames(b"?1", b"?2", b"?3", b"?4", b"?5"))
    assert (len(connection.slots), transport.is_paused) == (4, True)
    for number in (0, 1):
        assert transport.is_paused
        connection.outbox.fill(connection.slots[number], answer(b"!"))
        bench.loop.turn()
    assert (len(connection.slots), transport.is_paused) == (5, False)
    for slot in connection.slots[2:]:
        connection.outbox.fill(slot, answer(b"!"))
    bench.loop.turn()
    assert transport.taken == b"!!!!!"


def test_peer_that_does_not_read_is_not_read_from_and_loses_its_connection_in_time() -> None:
    bench = Bench(unsent_bytes_max=4096, unread_ms=30_000)
    connection, transport = bench.connect()
    transport.room = 0
    connection.data_received(frames(b"!" * 5000))
    bench.loop.turn()
    assert (transport.is_paused, bench.server.connections.answer_bytes) == (True, 5000)
    bench.sweep_after(29_000)
    transport.take(1)
    bench.sweep_after(29_000)  # One byte taken is a sign of life.
    assert not connection.closed
    bench.sweep_after(2_000)
    assert (connection.closed, transport.is_aborted, bench.server.connections.answer_bytes) == (True, True, 0)


def test_peer_that_reads_on_is_read_from_again() -> None:
    bench = Bench(unsent_bytes_max=4096)
    connection, transport = bench.connect()
    transport.room = 0
    connection.data_received(frames(b"!" * 5000))
    bench.loop.turn()
    connection.data_received(frames(b"!more"))
    assert transport.is_paused
    transport.take()
    bench.loop.turn()
    assert (transport.is_paused, bench.server.connections.answer_bytes) == (False, 0)
    assert transport.taken.endswith(b"!more")


def test_above_the_limit_of_all_only_those_with_unsent_answers_wait() -> None:
    bench = Bench(answer_bytes_max=1 << 20)
    slow, slow_transport = bench.connect()
    slow_transport.room = 0
    for _ in range(3):
        slow.data_received(frames(b"!" * 500_000))
        bench.loop.turn()
    assert slow_transport.is_paused
    assert bench.server.connections.answer_room_bytes() == 0
    quick, quick_transport = bench.connect()
    quick.data_received(frames(b"!x"))
    bench.loop.turn()
    assert (quick_transport.taken, quick_transport.is_paused) == (b"!x", False)


def test_large_answers_are_counted_before_the_turn_ends() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    transport.room = 0
    connection.data_received(frames(*[b"!" * 600_000] * 9))
    assert (transport.is_paused, bench.server.connections.answer_bytes) == (True, 1_200_000)


def test_far_above_the_limit_of_all_who_takes_nothing_for_longest_is_closed() -> None:
    bench = Bench(answer_bytes_max=1 << 20)
    peers = []
    for _ in range(5):
        connection, transport = bench.connect()
        transport.room = 0
        connection.data_received(frames(b"!" * 500_000))
        bench.loop.turn()
        bench.sweep_after(1000)
        peers.append(connection)
    assert [peer.closed for peer in peers] == [True, False, False, False, False]
    assert bench.server.connections.answer_bytes == 2_000_000


# -- Fairness


def test_many_requests_of_one_connection_wait_for_the_turn_of_others() -> None:
    bench = Bench()
    busy, busy_transport = bench.connect()
    other, other_transport = bench.connect()
    busy.data_received(frames(*[b"!b"] * (FRAMES_AT_ONCE + 1)))
    assert busy_transport.is_paused
    other.data_received(frames(b"!o"))
    bench.loop.turn()
    assert (len(busy_transport.taken), other_transport.taken) == (2 * (FRAMES_AT_ONCE + 1), b"!o")
    assert not busy_transport.is_paused


def test_slow_requests_wait_for_the_turn_of_others() -> None:
    class Slow(Parrot):
        def received(self, frame: memoryview) -> None:
            bench.clock.pass_ms(TURN_MS - 1)
            super().received(frame)

    bench = Bench()
    connection, transport = bench.connect(Slow)
    connection.data_received(frames(*[b"?"] * 3))
    assert (len(connection.slots), transport.is_paused) == (2, True)
    bench.loop.turn()
    assert (len(connection.slots), transport.is_paused) == (3, False)


# -- Limits


def test_connections_beyond_the_limit_are_refused_and_counted() -> None:
    bench = Bench(connections_max=2)
    kept = [bench.connect() for _ in range(2)]
    _, refused = bench.connect()
    assert (refused.is_aborted, bench.server.connections.refused_count) == (True, 1)
    kept[0][1].close()
    bench.loop.turn()
    assert not bench.connect()[1].is_aborted


@pytest.mark.parametrize("bad", [frames(b"garbage"), b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"])
def test_garbage_closes_after_earlier_answers_have_left(bad: bytes) -> None:
    bench = Bench()
    connection, transport = bench.connect()
    connection.data_received(frames(b"!x"))
    connection.data_received(bad + frames(b"!never"))
    bench.loop.turn()
    assert (connection.closed, bytes(transport.taken)) == (True, b"!x")


def test_client_on_a_wrong_port_has_one_log_line_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    def refuse(start: bytes) -> list[str]:
        caplog.clear()
        with caplog.at_level("WARNING", "net"):
            connection, _ = bench.connect()
            connection.data_received(start)
        assert connection.closed
        return caplog.messages

    tls, http = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET / HTTP/1.1\r\n\r\n"
    assert ["suppressed=0" in line for line in refuse(tls)] == [True]
    assert [refuse(tls) for _ in range(5)] == [[]] * 5
    assert ["looks_like='HTTP'" in line for line in refuse(http)] == [True]
    bench.clock.pass_ms(QUIET_MS)
    assert ["suppressed=5" in line for line in refuse(tls)] == [True]


def test_unfinished_requests_over_all_cost_the_largest_its_connection() -> None:
    bench = Bench(request_bytes_max=1 << 20)
    head = struct.pack(">i", 1 << 20)
    small, large, last = (bench.connect()[0] for _ in range(3))
    small.data_received(head + bytes(100_000))
    large.data_received(head + bytes(900_000))
    last.data_received(head + bytes(100_000))
    bench.loop.turn()
    assert [connection.closed for connection in (small, large, last)] == [False, True, False]
    assert bench.server.connections.request_bytes == 200_000


def test_silence_is_ended_before_the_first_request_and_after_the_last() -> None:
    bench = Bench(first_request_ms=10_000)
    mute, _ = bench.connect()
    half, _ = bench.connect()
    speaker, _ = bench.connect()
    half.data_received(b"\0\0")
    speaker.data_received(frames(b"!x"))
    bench.loop.turn()
    bench.sweep_after(11_000)
    assert (mute.closed, half.closed, speaker.closed) == (True, True, False)
    bench.sweep_after(50_000)
    assert speaker.closed


def test_byte_now_and_then_is_no_request() -> None:
    bench = Bench(first_request_ms=10_000)
    slow, _ = bench.connect()
    for _ in range(3):
        slow.data_received(b"\0")
        bench.loop.turn()
        bench.sweep_after(4_000)
    assert slow.closed


def test_last_request_of_a_client_is_a_whole_frame_and_no_connection() -> None:
    """A standby opens connections to the ports of the owner, which says in its log when no client asks it."""
    bench = Bench()
    begun_mono_ms = bench.clock.mono_ms()
    client, _ = bench.connect()
    bench.sweep_after(1_000)
    bench.connect()
    client.data_received(frames(b"!x")[:3])
    assert bench.server.connections.heard_mono_ms == begun_mono_ms
    client.data_received(frames(b"!x")[3:])
    assert bench.server.connections.heard_mono_ms == begun_mono_ms + 1_000


def test_time_in_which_the_broker_stood_still_counts_for_nobody() -> None:
    """Requests that came meanwhile are still to be read when the first sweep runs."""
    bench = Bench(first_request_ms=10_000, unread_ms=10_000)
    early, _ = bench.connect()
    mute, _ = bench.connect()
    reader, transport = bench.connect()
    transport.room = 0
    reader.data_received(frames(b"!" * 5000))
    bench.sweep_after(1_000)
    bench.clock.pass_ms(40_000)
    bench.server.connections.sweep(bench.clock.mono_ms())
    assert not early.closed
    assert not reader.closed
    early.data_received(frames(b"!x"))
    transport.take(1)
    bench.sweep_after(1_000)
    assert [each.closed for each in (early, mute, reader)] == [False, True, False]


def test_repeated_connections_do_not_delay_the_sweeps() -> None:
    bench = Bench(first_request_ms=10_000)
    mute, _ = bench.connect()
    for _ in range(110):
        bench.sweep_after(100)
        bench.connect()
    assert mute.closed


def test_closing_tells_who_asked_to_know_once() -> None:
    bench = Bench()
    connection, _ = bench.connect()
    events: list[str] = []
    connection.on_close.append(lambda: events.append("closed"))
    connection.close("")
    connection.close("")
    bench.loop.turn()
    assert events == ["closed"]


@given(st.data())
def test_sums_over_all_connections_return_to_zero(data: st.DataObject) -> None:
    """After any actions of the peers: when all connections are closed, all counters are zero."""
    bench = Bench(unsent_bytes_max=1024, request_bytes_max=1 << 20, answer_bytes_max=1 << 20)
    peers = [bench.connect() for _ in range(3)]
    stream = frames(b"?", b"!" * 3000, b"1", b"?", b"!x") + b"\0\0\0\x09half"
    for connection, transport in data.draw(st.lists(st.sampled_from(peers), max_size=20)):
        if connection.closed:
            continue
        for step in data.draw(_steps(connection, transport, stream)):
            step()
        bench.loop.turn()
    bench.log.keep(1)
    for connection, transport in peers:
        connection.close("")
        transport.abort()
    bench.loop.turn()
    assert (
        bench.server.connections.answer_bytes,
        bench.server.connections.request_bytes,
        len(bench.server.connections),
    ) == (0, 0, 0)


def _steps(
    connection: Parrot, transport: FakeTransport, stream: bytes
) -> st.SearchStrategy[Sequence[Callable[[], None]]]:
    def choke() -> None:
        transport.room = 100

    def fill() -> None:
        for slot in connection.slots:
            if not slot.is_filled:
                connection.outbox.fill(slot, answer(b"!filled"))

    whole = [lambda: connection.data_received(stream[:-8]), choke, transport.take, fill]
    return st.lists(st.sampled_from(whole), max_size=4)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
