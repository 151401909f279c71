"""SYSTEM_BUSY for senders: at which limits, with which remark, and until when; stored messages stay stored."""

from typing import Any

import pytest

from duolog.bridge.config import Options, RocketmqOptions
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.bridge.rocketmq.requests.background_requests import BackgroundQueue
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import flags
from tests.kit.clock import ManualClock
from tests.kit.threads import ManualThreads
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies

BUSY_MS = 5_000


def broker(**limits: int) -> RocketMQBroker:
    made = RocketMQBroker(options=Options(rocketmq=RocketmqOptions(**limits)))
    made.topic()
    made.settle()
    made.is_stalled = True
    return made


def look(broker: RocketMQBroker, ms: int) -> None:
    """Let time pass, with the log as it is."""
    broker.clock.pass_ms(ms)
    deadline = broker.rocketmq_context.requests.admission.next_deadline_mono_ms()
    if deadline is not None and deadline <= broker.clock.mono_ms():
        broker.rocketmq_context.requests.admission.check_progress(broker.clock.mono_ms())


def send(client: Client) -> str:
    """Say what became of a send: waits, stored, or the word of its refusal."""
    answer = client.send()
    if answer is None:
        return "waits"
    assert answer.code in (0, ResponseCode.SYSTEM_BUSY)
    return "stored" if answer.code == 0 else str(answer.remark).partition("]")[0] + "]"


def stored_count(broker: RocketMQBroker) -> int:
    return sum(queue.end_offset for queue in broker.topic().queues)


def test_only_so_many_sends_of_all_connections_wait_for_the_log() -> None:
    here = broker(sends_max=3)
    clients = [here.connect() for _ in range(5)]
    assert [send(each) for each in clients] == ["waits"] * 3 + ["[OVERLOAD]"] * 2
    assert stored_count(here) == 3
    clients[0].close()  # Its answer waits no more.
    assert send(clients[3]) == "waits"
    here.settle()
    here.is_stalled = False
    assert here.rocketmq_context.requests.admission.waiting == 0
    assert send(clients[4]) == "stored"
    assert stored_count(here) == 5


def test_log_that_keeps_no_promise_makes_senders_go_elsewhere() -> None:
    here = broker(busy_ms=BUSY_MS)
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
    here = broker(busy_ms=BUSY_MS)
    client, other = here.connect(), here.connect()
    for _ in range(10):
        assert send(client) == "waits"
        look(here, 0)
        look(here, BUSY_MS - 1)
        here._end_turn()
        here._sync()
        assert send(other) == "waits"


def test_so_much_may_be_unsynced() -> None:
    here = broker(unsynced_bytes_max=1 << 20)
    client = here.connect()
    body = bytes(300_000)
    answers = [client.send(body=body) for _ in range(5)]
    assert [None if answer is None else answer.remark.partition("]")[0] + "]" for answer in answers] == [
        None, None, None, None, "[REJECTREQUEST]"
    ]  # fmt: skip


def test_consumers_are_served_while_senders_wait() -> None:
    here = broker(sends_max=1)
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
    here = broker()
    if waiting:
        here.connect().send()
    look(here, 0)
    assert (here.rocketmq_context.requests.admission.next_deadline_mono_ms() is None) == (not waiting)
    here.settle()
    look(here, 100)
    assert here.rocketmq_context.requests.admission.next_deadline_mono_ms() is None


# -- Kinds of requests do not hurt each other


def commit(client: Client, *, oneway: bool = False) -> Any:
    where = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    return client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, oneway=oneway, commitOffset=0, **where)


def end(client: Client, half: Any) -> Any:
    position = int(half.ext["msgId"][16:], 16)
    verdict = {
        "producerGroup": "shop", "tranStateTableOffset": half.ext["queueOffset"], "commitLogOffset": position,
        "commitOrRollback": flags.TRANSACTION_COMMIT, "msgId": half.ext["msgId"], "transactionId": "t",
    }  # fmt: skip
    return client.ask(RequestCode.END_TRANSACTION, **verdict)


def word(answer: Any) -> str:
    if answer is None:
        return "waits"
    return "done" if answer.code == 0 else str(answer.remark).partition("]")[0] + "]"


def test_each_kind_that_waits_for_the_log_has_a_limit_of_its_own() -> None:
    here = broker(sends_max=2, acks_max=3, transactions_max=1)
    clients = [here.connect() for _ in range(6)]
    here.is_stalled = False
    halves = [clients[0].send(properties="TRAN_MSG\x01true\x02") for _ in range(2)]
    here.is_stalled = True
    assert [word(commit(each)) for each in clients] == ["waits"] * 3 + ["[OVERLOAD]"] * 3
    assert [word(end(each, half)) for each, half in zip(clients, halves, strict=False)] == ["waits", "[OVERLOAD]"]
    assert [word(each.send()) for each in clients] == ["waits"] * 2 + ["[OVERLOAD]"] * 4
    assert commit(clients[5], oneway=True) is None
    assert clients[5].beat("billing").code == 0
    for each in clients[:2]:
        each.close()
    here.settle()
    assert sum(here.rocketmq_context.requests.admission.in_work) == 0
    here.is_stalled = False
    assert word(commit(clients[4])) == word(end(clients[4], halves[1])) == "done"


def test_log_that_keeps_no_promise_makes_acks_and_verdicts_wait_elsewhere() -> None:
    here = broker(busy_ms=BUSY_MS)
    client = here.connect()
    here.is_stalled = False
    half = client.send(properties="TRAN_MSG\x01true\x02")
    here.is_stalled = True
    send(client)
    look(here, 0)
    look(here, BUSY_MS)
    assert word(commit(client)) == word(end(client, half)) == "[TIMEOUT_CLEAN_QUEUE]"
    assert client.pull(0).code == ResponseCode.PULL_NOT_FOUND


def cold(**limits: int) -> tuple[RocketMQBroker, ManualThreads]:
    """An broker with two messages that no memory has, and threads that are slow to read them."""
    first = RocketMQBroker()
    first.publish(first.topic(), b"a")
    first.publish(first.topic(), b"b", queue_id=1)
    here = RocketMQBroker(first.disk.after_kill(), Options(rocketmq=RocketmqOptions(**limits)))
    here.disk.cached = False
    here.store.executors.readers = here.store.executors.searches = threads = ManualThreads()
    return here, threads


def view(client: Client) -> Any:
    return client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=0)


def query(client: Client) -> Any:
    fields = {"topic": "orders", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    return client.ask(RequestCode.QUERY_MESSAGE, **fields)


def test_each_kind_that_waits_for_the_disk_has_a_limit_of_its_own() -> None:
    here, threads = cold(pulls_max=2, queries_max=1)
    clients = [here.connect() for _ in range(3)]
    assert [word(each.pull(0)) for each in clients] == ["waits", "waits", "[OVERLOAD]"]
    assert [word(view(each)) for each in clients] == ["waits", "[OVERLOAD]", "[OVERLOAD]"]
    assert word(query(clients[0])) == "[OVERLOAD]"
    back = {"offset": 0, "group": "billing", "delayLevel": 0}
    assert [word(each.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back)) for each in clients[:2]] == [
        "waits", "[OVERLOAD]"
    ]  # fmt: skip
    clients[1].close()
    assert clients[2].pull(1).code == ResponseCode.PULL_NOT_FOUND  # It needs no disk.
    here.publish(here.topic(), b"hot")
    assert bodies(clients[2].pull(1)) == [b"hot"]
    threads.run()
    here.settle()
    admission = here.rocketmq_context.requests.admission
    assert admission.reading == admission.in_work == [0] * len(admission.in_work)
    assert clients[2].pull(0) is None
    threads.run()
    here.loop.turn()
    assert bodies(clients[2].last_answer()) == [b"a", b"hot"]
    assert query(clients[0]) is None


class Ticking(ManualClock):
    """The clock of the background queues: time passes whenever they read it, so each request takes some."""

    def mono_ms(self) -> int:
        self.pass_us(500)
        return super().mono_ms()


def flood(client: Client, *codes: int) -> list[tuple[int, int, str]]:
    """Say all this at once; give the answers in their order: (number of the request, code, word)."""
    fields = {
        "consumerGroup": "billing", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
    }  # fmt: skip
    asked = [remoting.request(code, number, fields) for number, code in enumerate(codes)]
    client.connection.data_received(b"".join(b"".join(remoting.encode(each)) for each in asked))
    client.broker.clock.pass_ms(WAIT_MS // 2)
    client.broker.loop.turn()
    client.answer_to(-1)
    heard, client.heard = client.heard, []
    return [(each.opaque, each.code, word(each)) for each in heard]


WAIT_MS = 10_000
TOOLS, PULL, ROUTE = RequestCode.GET_BROKER_CONFIG, RequestCode.PULL_MESSAGE, RequestCode.GET_ROUTEINFO_BY_TOPIC


def slow_broker(**limits: int) -> Client:
    here = RocketMQBroker(options=Options(rocketmq=RocketmqOptions(**{"wait_ms": WAIT_MS, **limits})))
    here.publish(here.topic(), b"a")
    here.clock = Ticking(here.clock.now_ms(), here.clock.mono_ms())
    for queue in here.rocketmq_context.requests.background_queues.values():
        queue._clock = here.clock
    client = here.connect()
    client.connection.bounds = client.connection.bounds._replace(unanswered_max=100)
    return client


def test_pulls_overtake_a_flood_of_tools() -> None:
    client = slow_broker()
    heard = flood(client, *[TOOLS] * 20, PULL)
    assert [said for _, _, said in heard] == ["done"] * 21
    order = [number for number, _, _ in heard]
    assert order.index(20) < 6
    assert [number for number in order if number != 20] == list(range(20))  # Among themselves they keep their order.
    assert client.connection.unanswered == 0


def test_clients_and_tools_take_turns() -> None:
    heard = flood(slow_broker(), *[TOOLS] * 20, *[ROUTE] * 20)
    order = [number for number, _, _ in heard]
    assert order.index(20) < 6
    assert [said for _, _, said in heard] == ["done"] * 40


@pytest.mark.parametrize(("limit", "code", "other"), [("admin_max", TOOLS, ROUTE), ("clients_max", ROUTE, TOOLS)])
def test_so_many_of_a_kind_may_wait(limit: str, code: int, other: int) -> None:
    client = slow_broker(**{limit: 3})
    heard = flood(client, *[code] * 20, PULL, other)
    refused = [number for number, code, said in heard if (code, said) == (ResponseCode.SYSTEM_BUSY, "[OVERLOAD]")]
    assert len(refused) >= 10
    assert {number: said for number, _, said in heard if number >= 20} == {20: "done", 21: "done"}
    assert len(heard) == 22
    assert client.connection.unanswered == sum(client.broker.rocketmq_context.requests.admission.in_work) == 0
    assert flood(client, code) == [(0, 0, "done")]


@pytest.mark.parametrize("where", ["ext", "remark", "language", "body"])
def test_so_many_bytes_of_requests_may_wait(where: str) -> None:
    client = slow_broker()
    queue = client.broker.rocketmq_context.requests.background_queues[Kind.ADMIN] = BackgroundQueue(
        Kind.ADMIN, client.broker.rocketmq_context.requests.admission, client.broker.clock, WAIT_MS, 10_000
    )
    asked = [remoting.request(TOOLS, number, {}) for number in range(20)]
    for each in asked:
        setattr(each, where, {"x": "y" * 3_000} if where == "ext" else "y" * 3_000 if where != "body" else bytes(3_000))
    client.connection.data_received(b"".join(b"".join(remoting.encode(each)) for each in asked))
    assert len(queue) == 3
    client.broker.loop.turn()
    client.answer_to(-1)
    assert {word(each) for each in client.heard} == {"done", "[OVERLOAD]"}
    assert (len(client.heard), len(queue), client.connection.unanswered) == (20, 0, 0)
    client.heard.clear()
    assert flood(client, *[TOOLS] * 3) == [(number, 0, "done") for number in range(3)]


def test_tools_that_wait_too_long_are_answered_system_busy() -> None:
    client = slow_broker(wait_ms=WAIT_MS // 4)
    heard = flood(client, *[TOOLS] * 20)
    said = [said for _, _, said in heard]
    assert len(said) == 20
    assert set(said) == {"done", "[TIMEOUT_CLEAN_QUEUE]"}
    assert client.connection.unanswered == sum(client.broker.rocketmq_context.requests.admission.in_work) == 0


def test_connection_that_goes_leaves_no_turn_behind() -> None:
    client = slow_broker()
    asked = [remoting.request(TOOLS, number, {}) for number in range(20)]
    client.connection.data_received(b"".join(b"".join(remoting.encode(each)) for each in asked))
    client.close()
    assert sum(client.broker.rocketmq_context.requests.admission.in_work) == 0
    assert len(client.broker.rocketmq_context.requests.background_queues[Kind.ADMIN]) == 0
