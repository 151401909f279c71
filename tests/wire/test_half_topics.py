"""What operators of RocketMQ see of transactions: the half topic and the op topic, by a stock consumer and by mqadmin.

With --peers the same is asked of Apache RocketMQ.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients import remoting
from tests.wire.clients.jvm import Agents
from tests.wire.clients.message import Message, Seen
from tests.wire.clients.rocketmq_clients import RocketmqReader

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
WITHIN_S = 40.0
_numbers = itertools.count(int(time.time()))


def properties(seen: Seen) -> dict[str, str]:
    return {name: value.decode() for name, value in seen.headers} | dict(seen.inner)


def test_half_and_op_topic_hold_what_operators_look_for(broker: Broker, agents: Agents) -> None:
    java, admin, topic = agents.rocketmq("5.5"), agents.admin(), f"operators-{next(_numbers)}"
    remoting.create_topic(broker.rocketmq, topic, 1)
    reader = RocketmqReader(broker.namesrv, java, "5.5", "json", "pull")

    def run(line: str) -> str:
        printed: str = admin.call("run", words=[*line.split(), "-n", broker.namesrv])
        return printed

    def offset(name: str) -> int:
        return int(java.call("offsets", namesrv=broker.namesrv, topic=name)["0"])

    group = f"operated-{next(_numbers)}"
    java.call("tx_open", name=group, namesrv=broker.namesrv, group=group)
    sent: list[dict[str, Any]] = []
    for verdict in ("commit", "rollback", "unknown"):
        headers = (("local", verdict.encode()), ("check", b"rollback"), ("CHECK_IMMUNITY_TIME_IN_SECONDS", b"600"))
        message = Message(verdict.encode(), tags="red", key=b"key", headers=headers)
        sent += java.call("tx_send", name=group, topic=topic, messages=[message.as_rocketmq_json()])
    eventually("the commit", lambda: offset(topic), lambda end: end == 1, WITHIN_S)
    places = [each["half_offset"] for each in sent]

    halves = [each for each in reader.read({HALF: offset(HALF)}, WITHIN_S) if each.position[1] in places]
    assert [each.text for each in halves] == ["commit", "rollback", "unknown"]
    for half, answer in zip(halves, sent, strict=True):
        found = properties(half)
        assert (found["REAL_TOPIC"], found["REAL_QID"], found["PGROUP"]) == (topic, "0", group)
        assert found["TRAN_MSG"] == "true"
        assert found["UNIQ_KEY"] == found["__transactionId__"] == answer["transaction_id"]
        assert (half.tags, half.key) == ("red", b"key")

    def decided() -> list[int]:
        """What the op messages name, however many there are of them."""
        ops = reader.read({OP: offset(OP)}, WITHIN_S) if offset(OP) else []
        assert {each.tags for each in ops} <= {"d"}
        return sorted(int(number) for each in ops for number in each.text.strip(",").split(","))

    decided_now = eventually("op messages", decided, lambda numbers: set(places[:2]) <= set(numbers), WITHIN_S)
    assert places[2] not in decided_now

    (final,) = reader.read({topic: 1}, WITHIN_S)
    found = properties(final)
    assert found["__transactionId__"] == sent[0]["transaction_id"]
    assert not {"REAL_TOPIC", "REAL_QID"} & found.keys()

    for name in (HALF, OP):
        assert "#Queue ID" in run(f"topicStatus -t {name}").replace("#QID", "#Queue ID")
    shown = run(f"queryMsgByOffset -t {HALF} -b {broker_name(run('clusterList'))} -i 0 -o {places[2]}")
    assert topic in shown
    assert group in shown
    java.call("tx_close", name=group)


def broker_name(clusters: str) -> str:
    """The name in the second column of the first row."""
    return next(line.split()[1] for line in clusters.splitlines() if line and not line.startswith("#"))
