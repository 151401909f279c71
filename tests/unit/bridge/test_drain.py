"""The drain of a broker, in time that the test moves: it ends when all clients have left, or when its time is over."""

from duolog.bridge.drain import Drain


def run(drain: Drain, until_mono_ms: int) -> int:
    """Advance as the ticker does; return the time of the last call."""
    at = 0
    while (deadline := drain.next_deadline_ms()) is not None and deadline <= until_mono_ms:
        at = deadline
        drain.advance(at)
    return at


def test_it_ends_when_the_last_connection_is_closed() -> None:
    connections, ends = ["a", "b"], list[str]()
    drain = Drain(connections, ends.append)
    assert drain.next_deadline_ms() is None
    drain.begin(10_000, 0)
    run(drain, 5_000)
    assert not ends
    connections.clear()
    run(drain, 5_100)
    assert ends == ["drained, all clients have left"]


def test_it_ends_when_its_time_is_over_whoever_is_connected() -> None:
    ends = list[str]()
    drain = Drain(["a"], ends.append)
    drain.begin(1_050, 0)
    run(drain, 1_049)
    assert not ends
    assert run(drain, 1_050) == 1_050
    assert ends == ["drained, the time is over, open connections: 1"]


def test_a_second_request_may_only_shorten_it() -> None:
    ends = list[str]()
    drain = Drain(["a"], ends.append)
    drain.begin(10_000, 0)
    drain.begin(20_000, 0)
    drain.begin(500, 0)
    run(drain, 500)
    assert ends == ["drained, the time is over, open connections: 1"]
