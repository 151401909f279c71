"""Proves how ports distinguish TLS from no TLS, which handshakes they refuse, and the limits of handshakes.

The clients are Python's `ssl` without sockets, so that the tests determine each byte and each turn of the loop.
"""

import ssl
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog.bridge.config import LimitsOptions, TlsOptions
from duolog.bridge.net.tls.gate import BATCH
from duolog.bridge.net.tls.server_tls import ServerTls
from duolog.bridge.net.tls.stream import BURST_BYTES, CONTROL_BYTES_MAX, TlsStream
from tests.kit.certificates import Authority
from tests.unit.bridge.net.tls.bench import Recorder, TlsBench, TlsClient

RECORD_HEADER_OF_A_HANDSHAKE = b"\x16\x03\x01"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def open_connection(bench: TlsBench, context: ssl.SSLContext | None = None) -> TlsClient:
    client = bench.connect(context)
    client.shake()
    return client


def shake_and_read(client: TlsClient) -> bytes:
    """In TLS 1.3 a client has finished its handshake when it reads that the broker refuses it."""
    client.shake()
    return client.read()


# -- The first byte


@pytest.mark.parametrize("first", [b"\x00\x00\x00\x10 kafka or rocketmq", b"GET / HTTP/1.1\r\n", b"\x15", b"\x17\x03"])
def test_bytes_without_tls_reach_the_protocol_as_they_are_if_tls_is_optional(
    authority: Authority, first: bytes
) -> None:
    bench = TlsBench(authority)
    client = bench.connect()
    client.raw(first)
    client.raw(b" more")
    (protocol,) = bench.connected
    assert (protocol.data, protocol.peer) == (first + b" more", None)
    assert protocol.transport is client.transport, "plain connections pass no code of TLS"
    assert not len(bench.server.connections)


def test_connection_without_tls_is_closed_if_tls_is_required(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    bench = TlsBench(authority, mode="required")
    for _ in range(2):
        client = bench.connect()
        client.raw(b"GET / HTTP/1.1\r\n\r\n")
        assert client.transport.closing
        assert client.transport.taken == b""
    assert bench.connected == []
    assert bench.counts == (0, 0, 0, 2)
    lines = [text for text in caplog.messages if text.startswith("connection without TLS refused")]
    assert len(lines) == 1, "one line for one client"
    assert "looks_like='HTTP'" in lines[0]
    open_connection(bench)
    assert bench.counts == (1, 0, 0, 2)


def test_another_protocol_goes_on_with_a_connection_and_is_told_its_end(authority: Authority) -> None:
    """So a connection of a standby becomes one of the owner."""
    bench = TlsBench(authority)
    client = open_connection(bench)
    client.send(b"before")
    (first,) = bench.connected
    second = Recorder()
    first.transport.pause_reading()
    first.transport.set_protocol(second)
    second.connection_made(first.transport)
    second.transport.resume_reading()
    client.send(b"after")
    second.transport.write(b"answer")
    bench.loop.turn()
    assert client.read() == b"answer"
    client.transport.close()
    bench.loop.turn()
    assert (first.data, first.calls) == (b"before", [])
    assert (second.data, second.calls) == (b"after", ["lost"])


@pytest.mark.parametrize("step_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_handshake_and_messages_pass_however_they_are_split(
    authority: Authority, step_bytes: int, version: ssl.TLSVersion
) -> None:
    bench = TlsBench(authority, mode="required")
    context = authority.client_context()
    context.maximum_version = version
    client = bench.connect(context)
    client.shake(step_bytes)
    client.send(b"first", step_bytes)
    client.send(b" second", step_bytes)
    (protocol,) = bench.connected
    assert protocol.data == b"first second"
    assert protocol.peer is not None
    assert (protocol.peer.version, protocol.peer.principal) == (version.name.replace("_", "."), None)
    protocol.transport.write(b"answer")
    assert client.read() == b"answer"


def test_request_in_one_packet_with_the_end_of_the_handshake_is_received(authority: Authority) -> None:
    bench = TlsBench(authority)
    client = bench.connect()
    client.raw(client.hello())
    client.fetch()
    client.tls.do_handshake()
    client.tls.write(b"x" * 40_000)
    client.flush()
    assert bench.connected[0].data == b"x" * 40_000


# -- Refused handshakes


def test_refused_handshakes_are_told_why(authority: Authority, tmp_path: Path) -> None:
    bench = TlsBench(authority, min_version="1.3", client_auth="require")
    old = authority.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    stranger = Authority(tmp_path, "another CA").client("mallory")
    foreign = authority.client_context(stranger)
    for context, alert in (
        (old, "PROTOCOL_VERSION"),
        (authority.client_context(), "CERTIFICATE_REQUIRED"),
        (foreign, "UNKNOWN_CA"),
    ):
        client = bench.connect(context)
        with pytest.raises(ssl.SSLError, match=alert):
            shake_and_read(client)
        assert client.transport.closing
    assert bench.connected == []
    assert bench.counts == (0, 3, 0, 0)


@pytest.mark.parametrize("rest", [b"\x00\x05hello", b"\xff" * 60_000, b"\x00\x00" * 10])
def test_garbage_after_the_first_byte_ends_the_connection(authority: Authority, rest: bytes) -> None:
    bench = TlsBench(authority)
    client = bench.connect()
    client.raw(RECORD_HEADER_OF_A_HANDSHAKE + rest)
    assert client.transport.closing
    assert bench.counts == (0, 1, 0, 0)


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.binary(min_size=1, max_size=300), cut=st.integers(0, 300))
def test_no_bytes_break_a_handshake_or_an_open_connection(authority: Authority, data: bytes, cut: int) -> None:
    bench = TlsBench(authority, mode="required")
    hello = bench.connect()
    valid = hello.hello()
    for sent in (RECORD_HEADER_OF_A_HANDSHAKE + data, valid[:cut] + data):
        client = bench.connect()
        client.raw(sent[:1])
        if not client.transport.closing:
            client.raw(sent[1:])
        assert b"".join(each.data for each in bench.connected) == b""
        client.transport.abort()
        bench.loop.turn()
    opened = open_connection(bench)
    opened.raw(b"\x17\x03\x03" + data)
    assert bench.connected[0].data == b""
    opened.transport.abort()
    hello.transport.abort()
    bench.loop.turn()
    assert bench.counts[2] == 0
    assert not len(bench.server.connections)
    assert bench.server.connections.request_bytes == 0


# -- Limits


def test_client_that_never_ends_its_handshake_is_closed(authority: Authority) -> None:
    bench = TlsBench(authority, LimitsOptions(first_request_ms=30_000), handshake_ms=2_000)
    silent, half_open, trickling = bench.connect(), bench.connect(), bench.connect()
    half_open.raw(half_open.hello())
    hello = trickling.hello()
    for at in range(8):
        trickling.raw(hello[at : at + 1])
        bench.sweep_after(250)
    assert not half_open.transport.closing
    bench.sweep_after(500)
    assert (half_open.transport.closing, trickling.transport.closing) == (True, True)
    assert not silent.transport.closing
    bench.sweep_after(30_000)
    assert silent.transport.closing
    assert bench.counts[2] == 0


def test_the_silent_ones_give_way_when_there_are_handshakes_max(authority: Authority) -> None:
    """10,000 half-open handshakes are not more than `tls.handshakes_max`, and nobody else notices them."""
    bench = TlsBench(authority, handshakes_max=3)
    half_open = [bench.connect() for _ in range(5)]
    hello = [client.hello() for client in half_open]
    half_open[0].raw(hello[0][:10])
    for number in (1, 2):
        half_open[number].raw(hello[number])
    half_open[0].raw(hello[0][10:])  # The others are silent for longer now.
    assert bench.counts == (0, 0, 3, 0)
    half_open[3].raw(hello[3])
    half_open[4].raw(hello[4])
    assert [client.transport.closing for client in half_open] == [False, True, True, False, False]
    half_open[0].shake()
    assert bench.counts == (1, 2, 2, 0)
    open_connection(bench)
    assert bench.counts == (2, 2, 2, 0)


def test_handshake_may_not_have_more_than_handshake_bytes_max(authority: Authority) -> None:
    bench = TlsBench(authority, handshake_bytes_max=8 << 10)
    client = bench.connect()
    client.raw(RECORD_HEADER_OF_A_HANDSHAKE + b"\x00" * (8 << 10))
    assert client.transport.closing
    endless = bench.connect()
    # A ClientHello of 128 KiB in records of 16 bytes.
    endless.raw(b"\x16\x03\x01\x00\x10\x01\x01\xff\xff\x03\x03" + b"a" * 10)
    for _ in range(4):
        if not endless.transport.closing:
            endless.raw((b"\x16\x03\x01\x00\x10" + b"a" * 16) * 300)
    assert endless.transport.closing
    assert bench.counts == (0, 2, 0, 0)


def test_connections_above_connections_max_are_closed_before_their_handshake(authority: Authority) -> None:
    bench = TlsBench(authority, LimitsOptions(connections_max=2))
    clients = [bench.connect() for _ in range(3)]
    assert [client.transport.is_aborted for client in clients] == [False, False, True]
    assert (len(bench.server.connections), bench.server.connections.accepted_count) == (2, 0)


def test_hosts_take_turns_while_handshakes_wait(authority: Authority) -> None:
    """A flood from one host holds up its own handshakes, not those of another host."""
    waiting: list[Callable[[], None]] = []
    bench = TlsBench(authority, executor=Waiting(waiting))
    flood = [bench.connect() for _ in range(3 * BATCH)]
    for client in flood:
        client.raw(client.hello())
    other = bench.connect(host="192.0.2.2")
    other.raw(other.hello())
    waiting.pop()()  # The first handshake of the flood, which was alone.
    waiting.pop()()
    assert other.fetch()
    assert sum(client.fetch() for client in flood) == BATCH, "the other one was in the second task"


class Waiting:
    """An Executor whose tasks the test runs."""

    def __init__(self, tasks: list[Callable[[], None]]) -> None:
        self._tasks = tasks

    def submit(self, run: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._tasks.append(lambda: done(run()))


def test_stop_of_the_broker_closes_unfinished_handshakes(authority: Authority) -> None:
    bench = TlsBench(authority)
    clients = [bench.connect() for _ in range(3)]
    clients[0].raw(clients[0].hello())
    bench.server.hold_all()
    stopping = bench.server.close_all(0)
    with pytest.raises(StopIteration):
        stopping.send(None)
    assert all(client.transport.closing for client in clients)


# -- Open connections


def test_what_the_socket_does_not_take_waits_unencrypted_and_pauses_writing(authority: Authority) -> None:
    bench = TlsBench(authority)
    client = open_connection(bench)
    (protocol,) = bench.connected
    client.transport.room = 100_000
    body = bytes(range(256)) * 8192
    protocol.transport.writelines([body[: 1 << 20], memoryview(body)[1 << 20 :]])
    assert protocol.calls == ["pause"]
    assert BURST_BYTES > client.transport.get_write_buffer_size() > 100_000
    assert protocol.transport.get_write_buffer_size() > len(body) - 100_000
    read = client.read()
    while len(read) < len(body):
        client.transport.take(300_000)
        bench.loop.turn()
        read += client.read()
    assert read == body
    assert protocol.calls == ["pause", "resume"]
    assert protocol.transport.get_write_buffer_size() == 0


def test_close_sends_what_is_unsent_and_close_notify(authority: Authority) -> None:
    bench = TlsBench(authority)
    client = open_connection(bench)
    (protocol,) = bench.connected
    client.transport.room = 0
    protocol.transport.write(b"x" * 1_000_000)
    protocol.transport.close()
    protocol.transport.write(b"too late")
    assert not client.transport.closing
    client.transport.take()
    bench.loop.turn()
    assert client.read() == b"x" * 1_000_000
    assert client.tls.read(1) == b"", "close_notify"
    assert client.transport.closing
    assert protocol.calls[-1] == "lost"


@pytest.mark.parametrize("ends_well", [True, False])
def test_end_of_the_client_ends_the_connection_after_its_last_request(authority: Authority, ends_well: bool) -> None:
    bench = TlsBench(authority)
    client = open_connection(bench)
    (protocol,) = bench.connected
    client.tls.write(b"last")
    if ends_well:
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
        client.flush()
    else:
        client.flush()
        assert client.transport.get_protocol().eof_received()
        bench.loop.turn()
    assert (protocol.data, protocol.calls) == (b"last", ["eof", "lost"])
    assert client.transport.closing


def test_changed_record_ends_the_connection_with_an_alert(authority: Authority) -> None:
    bench = TlsBench(authority)
    client = open_connection(bench)
    client.tls.write(b"pay 10")
    record = bytearray(client.outgoing.read())
    record[-1] ^= 1
    client.raw(bytes(record))
    assert client.transport.is_aborted
    assert bench.connected[0].data == b""
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        client.read()


def test_client_that_causes_alerts_and_takes_none_is_closed(authority: Authority) -> None:
    """Python's `ssl` sends no key updates, so the test writes what OpenSSL would answer to them."""
    bench = TlsBench(authority)
    client = open_connection(bench)
    client.transport.room = 0
    bench.connected[0].transport.write(b"answer")
    stream = client.transport.get_protocol()
    assert isinstance(stream, TlsStream)
    stream._outgoing.write(b"x" * CONTROL_BYTES_MAX)
    client.transport.receive(b"\x17")
    assert not client.transport.closing
    stream._outgoing.write(b"x")
    client.transport.receive(b"\x03")
    assert client.transport.is_aborted


def test_paused_protocol_gets_nothing_more(authority: Authority) -> None:
    bench = TlsBench(authority)
    client = open_connection(bench)
    (protocol,) = bench.connected
    protocol.transport.pause_reading()
    assert client.transport.is_paused
    protocol.transport.resume_reading()
    client.send(b"again")
    assert protocol.data == b"again"


# -- Reload


def test_new_connections_get_the_new_certificate_and_live_ones_go_on(authority: Authority) -> None:
    bench = TlsBench(authority)
    before = open_connection(bench)
    first = bench.gate.tls.subject, der(before)
    authority.server()
    bench.gate.use(ServerTls(bench.options))
    after = open_connection(bench)
    assert der(after) != first[1]
    before.send(b"still here")
    bench.connected[0].transport.write(b"yes")
    assert (bench.connected[0].data, before.read()) == (b"still here", b"yes")


def test_certificate_that_was_replaced_is_freed_with_its_last_connection(authority: Authority) -> None:
    bench = TlsBench(authority)
    client = open_connection(bench)
    replaced = weakref.ref(bench.gate.tls.context)
    bench.gate.use(ServerTls(bench.options))
    assert replaced() is not None, "a connection uses it"
    client.transport.abort()
    bench.loop.turn()
    bench.connected.clear()
    del client
    assert replaced() is None


def der(client: TlsClient) -> bytes | None:
    return client.tls.getpeercert(binary_form=True)


def test_session_from_before_a_reload_is_not_resumed(authority: Authority) -> None:
    """A client whose CA was removed must not come in with an old session."""
    bench = TlsBench(authority)
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    first = open_connection(bench, context)
    again = bench.connect(context)
    again.tls.session = first.tls.session  # type: ignore[attr-defined]
    again.shake()
    assert again.tls.session_reused
    bench.gate.use(ServerTls(bench.options))
    late = bench.connect(context)
    late.tls.session = first.tls.session  # type: ignore[attr-defined]
    late.shake()
    assert not late.tls.session_reused


def test_limits_of_open_connections_are_below_those_of_answers() -> None:
    assert LimitsOptions().unsent_bytes_max >= CONTROL_BYTES_MAX
    assert TlsOptions().handshake_bytes_max * TlsOptions().handshakes_max <= LimitsOptions().request_bytes_max
