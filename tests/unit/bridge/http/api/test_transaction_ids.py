"""The list of transactions names half messages of RocketMQ producers by their unique keys, also when these have to be
read from the disk after a restart, by a thread and once; and it says which client was asked last."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from duolog.bridge.net.addresses import endpoint
from duolog.bridge.transactions.asked_clients import AskedClients
from duolog.store.errors import StoreError
from duolog.store.workers import Failure
from tests.kit.http import HEADERS, HttpBench, HttpDialogue, encoded, new_port
from tests.unit.bridge.rocketmq.broker import RocketMQBroker
from tests.unit.bridge.rocketmq.producing.test_half_messages import IMMUNITY, INTERVAL, CheckBackBroker, send_half

T = TypeVar("T")


class TurnThreads:
    """Implements `store.workers.Executor`: each task runs in a later turn of the running loop."""

    def __init__(self) -> None:
        self.count = 0
        self.before: list[Callable[[], object]] = []  # Called before the next task.
        self.failure: StoreError | None = None

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        self.count += 1
        asyncio.get_running_loop().call_soon(self._run, run, done)

    def _run(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        while self.before:
            self.before.pop()()
        done(self.failure or run())


def restarted(broker: RocketMQBroker) -> tuple[RocketMQBroker, TurnThreads]:
    """The same log with nothing of it in memory."""
    cold = RocketMQBroker(broker.disk.after_kill())
    cold.disk.cached = False
    cold.store.executors.readers = threads = TurnThreads()
    return cold, threads


def with_halves(*keys: str) -> RocketMQBroker:
    broker = CheckBackBroker()
    client = broker.connect()
    for key in keys:
        send_half(client, UNIQ_KEY=key)
    broker.settle()
    return broker


def ids(bench: HttpBench) -> list[Any]:
    status, rows = bench.ask("GET", "/api/transactions")
    assert status == 200
    return [(row["kind"], row["id"], row["half_offset"]) for row in rows]


EXPECTED = [("rocketmq", "orders/K1", 0), ("rocketmq", "orders/K2", 1)]


def test_a_restart_does_not_change_the_ids() -> None:
    broker = with_halves("K1", "K2")
    assert ids(HttpBench(broker)) == EXPECTED
    cold, threads = restarted(broker)
    assert ids(HttpBench(cold)) == EXPECTED
    assert threads.count == 2, "a thread read both"


def test_the_ids_are_on_the_page() -> None:
    cold, _ = restarted(with_halves("K1"))
    status, text = HttpBench(cold).ask("GET", "/console/transactions")
    assert status == 200
    assert '<th scope="row">orders/K1</th>' in text.decode()


def test_a_half_message_that_cannot_be_read_is_named_by_its_offset() -> None:
    cold, threads = restarted(with_halves("K1", "K2"))
    threads.failure = StoreError("the disk failed")
    assert ids(HttpBench(cold)) == [("rocketmq", "0", 0), ("rocketmq", "1", 1)]


def test_a_half_message_that_arrives_meanwhile_is_left_out() -> None:
    cold, threads = restarted(with_halves("K1", "K2"))
    threads.before.append(lambda: send_half(cold.connect(), UNIQ_KEY="K3"))
    assert ids(HttpBench(cold)) == EXPECTED
    assert len(ids(HttpBench(cold))) == 3


def test_a_long_unique_key_is_cut() -> None:
    ((_, id, _),) = ids(HttpBench(with_halves("K" * 1000)))
    assert id == "orders/" + "K" * 293


def test_each_id_is_read_once() -> None:
    cold, threads = restarted(with_halves("K1", "K2"))

    async def listings() -> None:
        port = new_port(cold)
        await port.start()
        for _ in range(3):
            dialogue = HttpDialogue(cold, port)
            dialogue.send(encoded("GET", "/api/transactions", b"", HEADERS))
            assert b"orders/K2" in await dialogue.answers()
        await port.stop()

    asyncio.run(listings())
    assert threads.count == 2


def test_the_client_that_was_asked_last_is_shown() -> None:
    broker = CheckBackBroker()
    bench, first = HttpBench(broker), broker.connect()
    first.beat(client_id="client-1")
    send_half(first)
    broker.settle()

    def asked() -> str:
        return str(bench.ask("GET", "/api/transactions")[1][0]["last_asked"])

    assert asked() == ""
    broker.wait(IMMUNITY)
    assert asked() == f"client-1 {endpoint(*first.connection.peer)}"
    first.close()
    broker.wait(INTERVAL)
    assert asked().startswith("client-1 "), "nobody else was asked"


def test_only_the_latest_asked_clients_are_kept() -> None:
    asked = AskedClients(2)
    for offset in (1, 2, 1, 3):
        asked.note(offset, f"client {offset}")
    assert [asked.of(offset) for offset in (1, 2, 3)] == ["client 1", "", "client 3"]
