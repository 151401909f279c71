"""Held requests end exactly once: by records, by time, or by release with their connection; nothing stays behind."""

from hypothesis import given
from hypothesis import strategies as st

from bridge.purgatory import Purgatory


class Client:
    """Waits for `wanted` events on its queues."""

    def __init__(self, wanted: int = 1) -> None:
        self.wanted = wanted
        self.ends: list[str] = []

    def try_complete(self) -> bool:
        assert not self.ends
        self.wanted -= 1
        if self.wanted == 0:
            self.ends.append("completed")
        return self.wanted == 0

    def expire(self) -> None:
        self.ends.append("expired")


def test_a_request_that_watches_several_queues_is_asked_once_for_each_event() -> None:
    purgatory, client = Purgatory(), Client(wanted=2)
    purgatory.hold(client, (1, 2, 2), 100)
    purgatory.check([1, 2, 3])
    assert client.ends == []
    purgatory.check([2])
    assert client.ends == ["completed"]
    purgatory.check([1, 2])
    purgatory.advance(1_000)
    assert client.ends == ["completed"]
    assert purgatory._watchers == {}


def test_time_ends_what_records_did_not() -> None:
    purgatory, client = Purgatory(), Client()
    purgatory.hold(client, (1,), 100)
    purgatory.advance(99)
    assert client.ends == []
    assert purgatory.next_deadline_ms() is not None
    purgatory.advance(100)
    assert client.ends == ["expired"]
    assert purgatory.next_deadline_ms() is None


def test_released_requests_hear_nothing_more() -> None:
    purgatory, client = Purgatory(), Client()
    held = purgatory.hold(client, (1,), 100)
    assert held is not None
    purgatory.release(held)
    purgatory.release(held)
    purgatory.check([1])
    purgatory.advance(100)
    assert client.ends == []


def test_at_the_limit_nobody_more_is_held() -> None:
    purgatory = Purgatory(held_max=1)
    held = purgatory.hold(Client(), (1,), 100)
    assert purgatory.hold(Client(), (1,), 100) is None
    assert held is not None
    purgatory.release(held)
    assert purgatory.hold(Client(), (1,), 100) is not None


@given(st.lists(st.tuples(st.sampled_from("hcra"), st.integers(0, 4)), max_size=60))
def test_every_request_ends_once_and_nothing_stays(steps: list[tuple[str, int]]) -> None:
    purgatory, now_ms, held = Purgatory(), 0, []
    for step, number in steps:
        if step == "h":
            client = Client(1 + number % 2)
            handle = purgatory.hold(client, (number, number + 1), now_ms + number * 10)
            assert handle is not None
            held.append((client, handle))
        elif step == "c":
            purgatory.check([number, number + 2])
        elif step == "r" and held:
            client, handle = held.pop(number % len(held))
            purgatory.release(handle)
            assert len(client.ends) <= 1
        else:
            now_ms += number * 5
            purgatory.advance(now_ms)
    purgatory.advance(now_ms + 1_000)
    assert all(len(client.ends) == 1 for client, _ in held)
    assert purgatory._watchers == {}
    assert len(purgatory) == 0
