"""Each request is answered once, whatever happens to the log, the disk and the connections meanwhile.

Random histories of requests of all kinds with small limits. Between them the log stalls, reader threads are late,
the clock advances, connections close. At the end no request is in work, and none is held.
"""

from collections import Counter
from random import Random
from typing import Any

import pytest

from duolog.bridge.config import Options, RocketmqOptions
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.protocol.rocketmq.messages import flags
from duolog.store.options import StoreOptions
from tests.kit.threads import ManualThreads
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker

STEPS, CLIENTS_MAX = 150, 12
GROUP = {"consumerGroup": "billing", "group": "billing", "producerGroup": "shop"}
TOOLS = (RequestCode.GET_BROKER_CONFIG, RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_CONSUME_STATS, 9999)
LOOKS = (RequestCode.NOTIFICATION, RequestCode.PEEK_MESSAGE, RequestCode.POLLING_INFO)


class History:
    """Some clients of a broker, the requests that they sent, and the answers that came."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        names = ("sends_max", "acks_max", "pulls_max", "queries_max", "clients_max", "admin_max", "transactions_max")
        limits = {name: rng.choice((1, 3, 100)) for name in names} | {"wait_ms": rng.choice((50, 10_000))}
        self.broker = RocketMQBroker(
            options=Options(rocketmq=RocketmqOptions(**limits)), store=StoreOptions(tail_bytes=1 << 12)
        )
        self.broker.topic()
        self.broker.topic("expiring", 1, message_ttl_ms="40")
        self.threads = self.broker.store.executors.readers = self.broker.store.executors.searches = ManualThreads()
        self.broker.disk.cached = False
        self.clients = [self.broker.connect() for _ in range(3)]
        self.answered: list[Counter[int]] = [Counter() for _ in self.clients]
        self.asked: dict[int, tuple[int, bool, bool]] = {}  # opaque: client, is owed an answer, may have none
        self.sent_halves: set[int] = set()  # opaques
        self.halves: list[dict[str, str]] = []  # what ends them
        self.positions = [0]

    # -- Asking

    def ask_some(self) -> None:
        number = self.rng.choice([at for at, client in enumerate(self.clients) if not client.connection.closed])
        frames = [self._frame(number) for _ in range(self.rng.choice((1, 1, 5, 12)))]
        self.clients[number].connection.data_received(b"".join(frames))
        if self.rng.random() < 0.7:
            self.broker.loop.turn()

    def _frame(self, client: int) -> bytes:
        code, fields, body = self.rng.choice((self._send, self._half, self._end, self._read, self._other))()
        opaque, is_oneway = len(self.asked), self.rng.random() < 0.25
        has_no_verdict = fields.get("commitOrRollback") == 0
        self.asked[opaque] = client, not is_oneway, has_no_verdict
        if "TRAN_MSG" in fields.get("properties", ""):
            self.sent_halves.add(opaque)
        texts = {name: str(value) for name, value in {**GROUP, **fields}.items()}
        return b"".join(remoting.encode(remoting.request(code, opaque, texts, body, oneway=is_oneway)))

    def _send(self) -> tuple[int, dict[str, Any], bytes]:
        topic = self.rng.choice(("orders", "expiring", "%RETRY%billing"))
        properties = self.rng.choice(("", "EXPIRE_AFTER_MS\x0130\x02", "WAIT\x01false\x02", "TIMER_DELAY_MS\x0150\x02"))
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "flag": 0,
            "bornTimestamp": 0, "properties": properties, "reconsumeTimes": self.rng.choice((0, 1, 20)),
        }  # fmt: skip
        return RequestCode.SEND_MESSAGE, fields, bytes(self.rng.choice((10, 3_000)))

    def _half(self) -> tuple[int, dict[str, Any], bytes]:
        code, fields, body = self._send()
        return code, {**fields, "topic": "orders", "properties": f"TRAN_MSG\x01true\x02{fields['properties']}"}, body

    def _end(self) -> tuple[int, dict[str, Any], bytes]:
        none = {"tranStateTableOffset": 0, "commitLogOffset": 0, "msgId": "?"}
        verdict = self.rng.choice((flags.TRANSACTION_COMMIT, flags.TRANSACTION_COMMIT, flags.TRANSACTION_ROLLBACK, 0))
        half = self.rng.choice(self.halves or [none])
        return RequestCode.END_TRANSACTION, {**half, "commitOrRollback": verdict}, b""

    def _read(self) -> tuple[int, dict[str, Any], bytes]:
        rng = self.rng
        fields = {
            "topic": rng.choice(("orders", "expiring", "%RETRY%billing")), "queueId": 0,
            "maxMsgNums": rng.choice((1, 32)),
            "queueOffset": rng.choice((0, 0, 1, 2, 5)), "sysFlag": rng.choice((4, 6, 7)), "commitOffset": 0,
            "suspendTimeoutMillis": rng.choice((0, 30, 15_000)), "subVersion": 0, "subscription": rng.choice("*a"),
        }  # fmt: skip
        wait = {
            "consumerGroup": "poppers", "queueId": -1, "invisibleTime": 1_000, "bornTime": 0,
            "pollTime": rng.choice((0, 30, 15_000)), "initMode": 0, "order": rng.choice(("true", "false")),
        }  # fmt: skip
        code = rng.choice((RequestCode.PULL_MESSAGE, RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, *LOOKS))
        return code, fields if code == RequestCode.PULL_MESSAGE else {**fields, **wait}, b""

    def _other(self) -> tuple[int, dict[str, Any], bytes]:
        rng = self.rng
        position = rng.choice(self.positions)
        by_key = {"topic": "orders", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        back = {"offset": position, "delayLevel": rng.choice((-1, 0, 1)), "maxReconsumeTimes": rng.choice((0, 5))}
        reset = {"topic": "orders", "timestamp": rng.choice((-1, 0, 1 << 60)), "isForce": "true"}
        code, fields = rng.choice((
            (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": position}),
            (RequestCode.QUERY_MESSAGE, by_key),
            (RequestCode.CONSUMER_SEND_MSG_BACK, back),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset),
            (RequestCode.UPDATE_CONSUMER_OFFSET, {"topic": "orders", "queueId": 0, "commitOffset": 0}),
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}),
            (rng.choice(TOOLS), {"topic": "orders"}),
        ))  # fmt: skip
        return code, fields, b""

    # -- What happens meanwhile

    def close_one(self) -> None:
        """Return whether the client was answered or closed."""
        client = self.rng.choice([client for client in self.clients if not client.connection.closed])
        client.close() if self.rng.random() < 0.5 else client.connection.connection_lost(None)
        if len(self.clients) < CLIENTS_MAX:
            self.clients.append(self.broker.connect())
            self.answered.append(Counter())

    def stall(self) -> None:
        self.broker.is_stalled = not self.broker.is_stalled

    def pass_ms(self, ms: int) -> None:
        self.broker.pass_ms(ms)
        self.broker.delays.run(self.broker.clock.now_ms(), self.broker.clock.mono_ms())

    def hear(self) -> None:
        for client, answered in zip(self.clients, self.answered, strict=True):
            for each in _heard(client):
                answered[each.opaque] += 1
                if "transactionId" in each.ext:
                    self._learn_place(each.opaque, each.ext)

    def _learn_place(self, opaque: int, ext: dict[str, str]) -> None:
        position = int(ext["msgId"][16:], 16)
        self.positions.append(position)
        if opaque in self.sent_halves:
            half = {"tranStateTableOffset": ext["queueOffset"], "commitLogOffset": str(position)}
            self.halves.append({**half, "msgId": ext["msgId"]})

    def end(self) -> None:
        self.broker.is_stalled = False
        for _ in range(6):
            self.threads.run()
            self.broker.settle()
            self.pass_ms(20_000)
            self.broker.settle()
            self.hear()


def _heard(client: Client) -> list[remoting.RemotingCommand]:
    client.answer_to(-1)
    heard, client.heard = client.heard, []
    return [each for each in heard if each.is_response]


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 400))])
def test_each_request_is_answered_once(seed: int) -> None:
    history = History(seed)
    broker, rng = history.broker, history.rng
    for _ in range(STEPS):
        chance = rng.random()
        if chance < 0.6 and any(not client.connection.closed for client in history.clients):
            history.ask_some()
        elif chance < 0.7:
            history.threads.run()
        elif chance < 0.78:
            history.stall()
        elif chance < 0.9:
            history.pass_ms(rng.choice((1, 20, 60, 1_500)))
        elif chance < 0.93 and any(not client.connection.closed for client in history.clients):
            history.close_one()
        else:
            broker.settle() if chance < 0.96 else broker.loop.turn()
        history.hear()
    history.end()

    for client in history.clients:
        assert client.connection.closed or client.connection.unanswered == len(client.connection.held) == 0
    for opaque, (number, is_owed, may_have_none) in history.asked.items():
        count = history.answered[number][opaque]
        is_closed = history.clients[number].connection.closed
        assert count <= is_owed, f"request {opaque} of client {number} was answered {count} times"
        assert count == is_owed or is_closed or may_have_none, f"request {opaque} was not answered"
    flow = broker.rocketmq_context.requests.admission
    assert flow.waiting == sum(flow.in_work) == sum(flow.reading) == len(broker.purgatory) == 0
    assert not broker.rocketmq_context.pop.reading
    assert not broker.halves.gathered
