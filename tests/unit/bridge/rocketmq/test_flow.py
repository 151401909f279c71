"""Senders that are told to wait: at which limit, in which words, and until when; what was stored stays stored."""

from typing import Any

import pytest

from bridge.config import Options, RocketmqOptions
from protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.unit.bridge.rocketmq.office import Client, Office

BUSY_MS = 5_000


def office(**limits: int) -> Office:
    made = Office(options=Options(rocketmq=RocketmqOptions(**limits)))
    made.topic()
    made.settle()
    made.is_stalled = True
    return made


def look(office: Office, ms: int) -> None:
    """Let time pass, with the log as it is."""
    office.clock.pass_ms(ms)
    deadline = office.rocketmq_flow.next_deadline_mono_ms()
    if deadline is not None and deadline <= office.clock.mono_ms():
        office.rocketmq_flow.look(office.clock.mono_ms())


def send(client: Client) -> str:
    """Say what became of a send: waits, stored, or the word of its refusal."""
    answer = client.send()
    if answer is None:
        return "waits"
    assert answer.code in (0, ResponseCode.SYSTEM_BUSY)
    return "stored" if answer.code == 0 else str(answer.remark).partition("]")[0] + "]"


def stored_count(office: Office) -> int:
    return sum(queue.end_offset for queue in office.topic().queues)


def test_only_so_many_sends_of_all_connections_wait_for_the_log() -> None:
    here = office(sends_max=3)
    clients = [here.connect() for _ in range(5)]
    assert [send(each) for each in clients] == ["waits"] * 3 + ["[OVERLOAD]"] * 2
    assert stored_count(here) == 3
    clients[0].close()  # Its answer waits no more.
    assert send(clients[3]) == "waits"
    here.settle()
    here.is_stalled = False
    assert here.rocketmq_flow.waiting == 0
    assert send(clients[4]) == "stored"
    assert stored_count(here) == 5


def test_log_that_keeps_no_promise_makes_senders_go_elsewhere() -> None:
    here = office(busy_ms=BUSY_MS)
    first, second = here.connect(), here.connect()
    assert send(first) == send(second) == "waits"
    look(here, 0)
    look(here, BUSY_MS - 100)
    assert send(first) == "waits"
    look(here, 100)
    answer: Any = second.send()
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 5000ms, size of queue: 3",
    )
    here.settle()
    here.is_stalled = False
    look(here, 100)
    assert send(second) == "stored"


def test_slow_log_that_moves_is_not_busy() -> None:
    here = office(busy_ms=BUSY_MS)
    client, other = here.connect(), here.connect()
    for _ in range(10):
        assert send(client) == "waits"
        look(here, 0)
        look(here, BUSY_MS - 1)
        here._end_turn()
        here._sync()
        assert send(other) == "waits"


def test_so_much_may_be_unsynced() -> None:
    here = office(unsynced_bytes_max=1 << 20)
    client = here.connect()
    body = bytes(300_000)
    answers = [client.send(body=body) for _ in range(5)]
    assert [None if answer is None else answer.remark.partition("]")[0] + "]" for answer in answers] == [
        None, None, None, None, "[REJECTREQUEST]"
    ]  # fmt: skip


def test_consumers_are_served_while_senders_wait() -> None:
    here = office(sends_max=1)
    client = here.connect()
    here.is_stalled = False
    assert send(client) == "stored"
    here.is_stalled = True
    assert send(client) == "waits"
    assert client.pull(0).code == 0
    assert client.beat("billing").code == 0
    back = client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="billing", delayLevel=0)
    assert back is not None
    assert str(back.remark).startswith("[OVERLOAD]")
    assert client.connection.unanswered == 1


@pytest.mark.parametrize("waiting", [0, 1])
def test_nobody_looks_while_nothing_waits(waiting: int) -> None:
    here = office()
    if waiting:
        here.connect().send()
    look(here, 0)
    assert (here.rocketmq_flow.next_deadline_mono_ms() is None) == (not waiting)
    here.settle()
    look(here, 100)
    assert here.rocketmq_flow.next_deadline_mono_ms() is None
