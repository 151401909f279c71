"""RocketMQ's own admin command line, mqadmin 5.5.0, against the broker.

Each subcommand that docs/reference/mqadmin.md calls working is run as an operator would, in one JVM for all, and says
what it should.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients import remoting
from tests.wire.clients.agent import Agent
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message

pytestmark = pytest.mark.usefixtures("both_protocols")

PAGE = Path(__file__).parents[2] / "docs/reference/mqadmin.md"
COUNT = 8
_numbers = itertools.count(int(time.time()))


class Shop(NamedTuple):
    """What the subcommands are asked about: a topic with messages, and a group that consumes it."""

    admin: Agent
    namesrv: str
    names: dict[str, str]

    def run(self, line: str) -> str:
        """Run a subcommand; {names} in its words are filled in."""
        words = [word.format(**self.names) for word in line.split()]
        printed: str = self.admin.call("run", words=[*words, "-n", self.namesrv])
        return printed


@pytest.fixture(scope="module")
def shop(broker: Broker, agents: Agents, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with open_shop(broker, agents, tmp_path_factory.mktemp("files")) as opened:
        yield opened


@contextmanager
def open_shop(broker: Broker, agents: Agents, files: Path) -> Iterator[Shop]:
    """Let clients write to a topic and consume it."""
    java, topic, group = agents.rocketmq("5.5"), f"tools-{next(_numbers)}", f"shoppers-{next(_numbers)}"
    remoting.create_topic(broker.rocketmq, topic, 2)
    messages = [
        Message(b"body %d" % n, n % 2, key=b"key-%d order" % n, tags="red", headers=(("n", b"%d" % n),))
        for n in range(COUNT)
    ]
    sent = java.call(
        "write", namesrv=broker.namesrv, topic=topic, how="sync", trace=True,
        messages=[each.as_rocketmq_json() for each in messages],
    )  # fmt: skip
    recalled, handle = java.call(
        "write_delayed", namesrv=broker.namesrv, trace=True, topic=topic,
        messages=[Message(b"recalled", 0).as_rocketmq_json() | {"setDelayTimeSec": 3600}],
    )[0]  # fmt: skip
    assert java.call("recall", namesrv=broker.namesrv, trace=True, topic=topic, handle=handle) == recalled
    Confluent(broker.kafka).write(topic, [Message(b"kafka", 0, key=b"kafka-key")], way="single", codec="none")
    java.call("open", name=group, namesrv=broker.namesrv, topics={topic: 0}, group=group, persist_ms=100)
    seen: list[Any] = []
    eventually(
        "the group has consumed",
        lambda: seen.extend(java.call("seen", name=group)["seen"]) or len(seen),
        lambda count: count == COUNT + 1,
        30,
    )
    (files / "topics.json").write_text(json.dumps([{"topicName": f"{topic}-{n}", "writeQueueNums": 2} for n in (3, 4)]))
    (files / "groups.json").write_text(json.dumps([{"groupName": f"{group}-{n}"} for n in (3, 4)]))
    names = {
        "topic": topic, "group": group, "broker": broker.rocketmq, "unique": sent[0][2], "id": sent[0][3],
        "files": str(files), "recalled": recalled,
    }  # fmt: skip
    shop = Shop(agents.admin(), broker.namesrv, names)
    connection = eventually(
        "the group's positions are there",
        lambda: shop.run("consumerProgress -g {group}"),
        lambda printed: "Consume Diff Total: 0" in printed and topic in printed,
        30,
    )
    assert connection
    client = re.search(r"^(\S+@\S+)\s", shop.run("consumerConnection -g {group}"), re.MULTILINE)
    assert client is not None
    names["client"] = client[1]
    yield shop
    java.call("close", name=group)


# In this order, because some commands change what others print.
CASES = [
    # -- Topics
    ("updateTopic -t {topic}-2 -b {broker} -r 2 -w 2", "create topic to .* success"),
    ("updateTopic -t {topic}-2 -c DefaultCluster -r 3 -w 3", "readQueueNums=3"),
    (
        "updateTopic -t {topic}-2 -b {broker} -r 3 -w 3 -a +message.ttl.ms=-1,+message.expired=drop",
        "message.expired=drop",
    ),
    ("updateTopicPerm -t {topic}-2 -b {broker} -p 4", "update topic perm from 6 to 4"),
    ("updateTopicList -b {broker} -f {files}/topics.json", "success"),
    ("topicList", "{topic}-2\n"),
    ("topicList", "{topic}-4\n"),
    ("topicList -c", r"DefaultCluster\s+{topic}\s+{group}"),
    ("topicRoute -t {topic}-2", '"perm":4,\\s+"readQueueNums":3'),
    ("topicClusterList -t {topic}", "DefaultCluster"),
    ("topicStatus -t {topic}", rf"duolog\s+1\s+0\s+{COUNT // 2}\s+\d{{{{4}}}}-"),
    ("allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2", r'"10.0.0.2":\[.*"queueId":1'),
    ("statsAll -t {topic}", rf"{{topic}}\s+{{group}}\s+0\s+\S+\s+\S+\s+{COUNT + 1}\s+{COUNT + 1}"),
    ("updateOrderConf -m put -t {topic} -v duolog:2", "update orderConf success"),
    ("updateOrderConf -m get -t {topic}", r"orderConf=\[duolog:2\]"),
    ("updateOrderConf -m delete -t {topic}", "delete orderConf success"),
    ("queryCq -t {topic} -q 1 -i 1 -c 2 -b {broker}", r"max: 4, min: 0[\s\S]*tagsCode=112785"),
    ("deleteTopic -t {topic}-2 -c DefaultCluster", "delete topic .* from cluster .* success"),
    # -- Cluster and broker
    ("clusterList", r"DefaultCluster\s+duolog\s+0\s+{broker}\s+V5_3_3"),
    ("clusterList -m", r"DefaultCluster\s+duolog"),
    ("brokerStatus -b {broker}", r"msgPutTotalTodayNow\s+: \d+"),
    ("getBrokerConfig -b {broker}", r"autoCreateTopicEnable\s+=  true"),
    ("updateBrokerConfig -b {broker} -k autoCreateTopicEnable -v false", "update broker config success"),
    ("getBrokerConfig -c DefaultCluster", r"autoCreateTopicEnable\s+=  false"),
    ("updateBrokerConfig -b {broker} -k autoCreateTopicEnable -v true", "update broker config success"),
    ("updateBrokerConfig -b {broker} -k fileReservedTime -v 3", "update broker config success"),
    ("updateBrokerConfig -c DefaultCluster -k noSuchThing -v 3", "update broker config success"),
    ("updateNamesrvConfig -k noSuchThing -v 3", "update name server config success"),
    ("haStatus -b {broker}", r"#MasterAddr\s+{broker}\s*#MasterCommitLogMaxOffset\s+\d+"),
    ("haStatus -c DefaultCluster", r"#SlaveNum\s+0\s*#InSyncSlaveNum\s+0"),
    ("getColdDataFlowCtrInfo -b {broker}", "has no cold ctr table"),
    ("checkRocksdbCqWriteProgress -c DefaultCluster -t {topic}", r"\A(?![\s\S]*(error|Exception))"),
    ("wipeWritePerm -b duolog", r"wipe write perm of broker\[duolog\] in name server\[.*\] OK, \d+"),
    ("topicRoute -t {topic}", '"perm":4'),
    ("addWritePerm -b duolog", r"add write perm of broker\[duolog\] in name server\[.*\] OK, \d+"),
    ("topicRoute -t {topic}", '"perm":6'),
    ("cleanExpiredCQ -b {broker}", "success"),
    ("cleanUnusedTopic -b {broker}", "success"),
    ("deleteExpiredCommitLog -b {broker}", "success"),
    ("getNamesrvConfig", r"listenPort\s+=  \d+"),
    ("updateKvConfig -s shop -k colour -v red", "create or update kv config to namespace success"),
    ("deleteKvConfig -s shop -k colour", "delete kv config from namespace success"),
    ("exportConfigs -c DefaultCluster -f {files}", "export .*configs.json success"),
    ("exportMetadata -c DefaultCluster -f {files}", "export .*metadata.json success"),
    ("exportMetrics -c DefaultCluster -f {files}", "export .*metrics.json success"),
    # -- Messages
    ("queryMsgById -i {id} -t {topic}", r"Keys: +\[key-0 order\][\s\S]*MessageTrack \[consumerGroup={group}"),
    ("queryMsgById -i {id} -t {topic} -g {group} -d {client}", "consumeResult=CR_SUCCESS"),
    ("queryMsgByKey -t {topic} -k key-3", r"\s1\s+1\s"),
    ("queryMsgByKey -t {topic} -k order", r"(\n[0-9A-F]{{32,}} .*){{8}}"),
    ("queryMsgByKey -t {topic} -k kafka-key", rf"\s0\s+{COUNT // 2}\s"),
    ("queryMsgByUniqueKey -i {unique} -t {topic}", r"Queue Offset: +0"),
    ("queryMsgByOffset -t {topic} -b duolog -i 1 -o 2", r"Keys: +\[key-5 order\]"),
    ("queryMsgTraceById -i {unique}", r"#Type[\s\S]*Pub"),
    ("queryMsgTraceById -i {recalled}", r"#Type[\s\S]*Pub"),  # It prints what was sent and consumed, not recalls.
    ("queryMsgByKey -t RMQ_SYS_TRACE_TOPIC -k {recalled}", r"\n[0-9A-F]{{32,56}} "),
    (
        "printMsg -t RMQ_SYS_TRACE_TOPIC -d true",
        "Recall\x01\\d+\x01DefaultRegion\x01[^\x01]+\x01{topic}\x01{recalled}\x01true",
    ),
    ("printMsg -t {topic} -d true", "BODY: body 7"),
    ("printMsgByQueue -t {topic} -a duolog -i 0 -p true -d true", "BODY: kafka"),
    ("consumeMessage -t {topic} -b duolog -i 1 -o 3 -c 1", "BODY: body 7"),
    ("sendMessage -t {topic} -p hello -c red", r"duolog\s+\d\s+SEND_OK"),
    ("sendMsgStatus -b duolog -c 2 -s 10", "sendStatus=SEND_OK"),
    ("checkMsgSendRT -t {topic} -a 2 -s 10", r"duolog\s+\d\s+true"),
    # -- Groups and clients
    ("updateSubGroup -b {broker} -g {group}-2 -r 3", "create subscription group to .* success"),
    ("updateSubGroupList -b {broker} -f {files}/groups.json", "success"),
    ("getConsumerConfig -g {group}-4", r"retryMaxTimes\s+=  16"),
    ("getConsumerConfig -g {group}-2", r"retryMaxTimes\s+=  3"),
    ("consumerProgress -g {group} -s true", r"{topic}\s+duolog\s+0\s+\d+\s+\d+\s+\d+\.\d+"),
    ("consumerProgress", r"{group}\s+1\s+V5_5_0\s+PUSH\s+CLUSTERING"),
    ("consumerConnection -g {group}", r"{client} +\S+ +JAVA +V5_5_0[\s\S]*{topic}\s+\*"),
    ("consumerStatus -g {group}", "Same subscription in the same group of consumer[\\s\\S]*Rebalance OK"),
    ("consumerStatus -g {group} -i {client}", r"#Consumer Properties#[\s\S]*PROP_CONSUMEORDERLY +: false"),
    ("brokerConsumeStats -b {broker}", r"{topic}\s+{group}\s+duolog"),
    ("producer -b {broker}", "producer group .* instance : clientId="),
    ("producerConnection -g CLIENT_INNER_PRODUCER -t {topic}", r"@\S+\s+\S+\s+JAVA\s+V5_5_0"),
    ("cloneGroupOffset -s {group} -d {group}-2 -t {topic} -o true", "clone group offset success"),
    ("skipAccumulatedMessage -g {group} -t {topic}", r"duolog\s+1\s+\d"),
    ("resetOffsetByTime -g {group}-2 -t {topic} -s 0", r"duolog\s+1\s+0\s"),
    ("setConsumeMode -b {broker} -t {topic} -g {group}-2 -m POP", "set consume mode to .* success"),
    ("deleteSubGroup -b {broker} -g {group}-2", "delete subscription group .* success"),
]


@pytest.mark.parametrize(
    ("line", "expected"), CASES, ids=[f"{line.split()[0]}-{n}" for n, (line, _) in enumerate(CASES)]
)
def test_subcommand_says_what_it_should(shop: Shop, line: str, expected: str) -> None:
    check_subcommand(shop, line, expected)


def check_subcommand(shop: Shop, line: str, expected: str) -> None:
    wanted = expected.format(**{name: re.escape(text) for name, text in shop.names.items()})
    within_s = 20 if "TRACE" in line.upper() else 0  # Traces are sent in the background, by the client.
    eventually(
        line,
        lambda: shop.run(line),
        lambda printed: re.search(wanted, printed) is not None and (within_s or "SubCommandException" not in printed),
        within_s,
    )


def test_table_of_the_page_names_every_subcommand_and_those_that_work_are_run(shop: Shop) -> None:
    table = PAGE.read_text().split("<!-- mqadmin -->")[1].split("<!-- /mqadmin -->")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.strip().splitlines()[2:]]
    named = {name: verdict for verdict, names, _ in rows for name in re.findall(r"`(\w+)`", names)}
    assert named.keys() == shop.admin.call("list").keys()
    assert {name for name, verdict in named.items() if verdict == "works"} == {line.split()[0] for line, _ in CASES}
