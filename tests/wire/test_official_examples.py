"""Apache RocketMQ's own examples, of both versions, as they are: what they print when they run against a fresh broker.

Several have 127.0.0.1:9876 written in them, so the broker's name server has that port here; two runs on one machine
take turns. What needs ten seconds (delays, checks of transactions) is begun first and checked last.
"""

from __future__ import annotations

import fcntl
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.broker import PORTS, Broker, free_ports
from tests.kit.eventually import eventually
from tests.kit.lacking import skip_or_fail
from tests.wire.clients import remoting
from tests.wire.clients.examples import Examples, Running
from tests.wire.clients.topics import end_offsets

VERSIONS = ("5.5", "4.9")
NAMESRV_PORT = 9876
NOT_MADE_BY_SENDING = ("RequestTopic", "TopicTest1")  # A request is refused at once if there is no consumer.
SETTINGS = {"txn.immunity_ms": 1000, "txn.check_interval_ms": 1000}
WITHIN_S = 60.0
SENT = r"sendStatus=SEND_OK"
SENT_TOO = r"send success"
RECEIVED = r"MessageExt \["
STARTED = r"Consumer Started"
ANSWERED = r"replyMessage|Exception:"
REPLIED = r"replyMessage: MessageExt "
LATER = r"(-?\d+)  ms later\]"
WRONG = re.compile(r"\tat org\.apache|Exception:|\d Exception | fail\.")


class Run(NamedTuple):
    """One example, and how often it prints what. What sends prints no more of it."""

    main: str
    prints: str
    times: int
    arguments: str = ""
    check: Callable[[str], None] | None = None  # of all that it printed


# -- What is to be found in the output


def bodies(text: str) -> list[str]:
    """Of all messages, in the order of the output; Java shows bytes as numbers."""
    return [bytes(map(int, body.split(","))).decode() for body in re.findall(r"body=\[([\d, ]+)\]", text)]


def has_all_of_quickstart(text: str) -> None:
    assert set(bodies(text)) >= {f"Hello RocketMQ {number}" for number in range(1000)}


def has_each_queue_in_order(text: str) -> None:
    """It suspends a queue now and then, and sees the same message again."""
    places = [(int(queue), int(offset)) for queue, offset in re.findall(r"queueId=(\d+), .*?queueOffset=(\d+)", text)]
    for queue in {queue for queue, _ in places}:
        offsets = [offset for each, offset in places if each == queue]
        assert sorted(set(offsets)) == list(range(len(set(offsets))))
        assert offsets == sorted(offsets)


def has_no_tag_b(text: str) -> None:
    assert set(re.findall(r"TAGS=(\w+)", text)) == {"TagA", "TagC"}


def has_what_the_condition_asks_for(text: str) -> None:
    assert sorted(bodies(text)) == ["Hello RocketMQ 0", "Hello RocketMQ 1", "Hello RocketMQ 3"]


def has_what_was_committed(text: str) -> None:
    """Of ten messages every third is left open, committed, rolled back."""
    assert sorted(bodies(text)) == ["Hello RocketMQ 1", "Hello RocketMQ 4", "Hello RocketMQ 7"]


def has_waited(text: str) -> None:
    assert all(int(ms) >= 0 for ms in re.findall(LATER, text))


def is_the_reply(text: str) -> None:
    assert "reply message contents." in bodies(text)


# fmt: off
BEGUN_FIRST: dict[str, list[Run]] = {
    "delay levels": [
        Run("schedule.ScheduledMessageProducer", SENT, 100),
        Run("schedule.ScheduledMessageConsumer", LATER, 100, check=has_waited),
    ],
    "timers": [
        Run("schedule.TimerMessageProducer", SENT, 10),
        Run("schedule.TimerMessageConsumer", LATER, 10, check=has_waited),
    ],
    "transactions": [
        Run("transaction.TransactionProducer", SENT, 10),
        Run("operation.Consumer", RECEIVED, 3, "-g committed -t TopicTest1234 -s * -f false", has_what_was_committed),
    ],
}
AT_ONCE: dict[str, list[Run]] = {
    "quickstart": [
        Run("quickstart.Producer", SENT, 1000),
        Run("simple.OnewayProducer", "", 0),
        Run("quickstart.Consumer", RECEIVED, 1100, check=has_all_of_quickstart),
    ],
    "broadcast": [Run("broadcast.PushConsumer", RECEIVED, 1100, check=has_all_of_quickstart)] * 2,
    "popping": [Run("simple.PopConsumer", RECEIVED, 1200)],
    "ordermessage": [
        Run("ordermessage.Producer", SENT, 100),
        Run("ordermessage.Consumer", RECEIVED, 30, check=has_each_queue_in_order),
    ],
    "tags": [
        Run("filter.TagFilterProducer", SENT, 60),
        Run("filter.TagFilterConsumer", RECEIVED, 40, check=has_no_tag_b),
    ],
    "batch": [Run("batch.SimpleBatchProducer", SENT, 1), Run("batch.SplitBatchProducer", SENT, 8)],
    "namespace": [
        Run("namespace.ProducerWithNamespace", SENT_TOO, 100),
        Run("namespace.PushConsumerWithNamespace", "Msg topic is:NAMESPACE_TOPIC", 100),
    ],
    "tracemessage": [
        Run("tracemessage.TraceProducer", SENT, 128),
        Run("tracemessage.TracePushConsumer", RECEIVED, 128),
    ],
    "rpc": [
        Run("rpc.ResponseConsumer", STARTED, 1),
        Run("rpc.RequestProducer", ANSWERED, 1),  # Until the other one consumes, its three seconds may be over.
        Run("rpc.RequestProducer", REPLIED, 1, check=is_the_reply),
        Run("rpc.AsyncRequestProducer", REPLIED, 1, check=is_the_reply),
    ],
    "sql": [  # The examples for tags use the same group, so these do not follow them directly.
        Run("filter.SqlFilterProducer", SENT, 10),
        Run("filter.SqlFilterConsumer", RECEIVED, 3, check=has_what_the_condition_asks_for),
    ],
    # This consumer has the same group as the other one, of which it would take half of the queues. So it runs later.
    "namespace, pulled": [Run("namespace.PullConsumerWithNamespace", "Topic is:NAMESPACE_TOPIC", 25)],
    "simple": [
        Run("simple.AsyncProducer", r"\d +OK \w+", 100),
        Run("simple.PullScheduleService", "pullStatus=FOUND", 4),
        Run("simple.LitePullConsumerSubscribe", RECEIVED, 1000),
        Run("simple.LitePullConsumerAssign", RECEIVED, 10),
    ],
}
# Its producer is of the group that "transactions" has, and commits whatever it is asked about: the broker may ask
# either, so it starts when the other one has ended. Its consumer is of the group that pops.
LAST: dict[str, list[Run]] = {
    "opentracing": [
        Run("tracemessage.OpenTracingProducer", SENT, 1),
        Run("tracemessage.OpenTracingTransactionProducer", SENT, 1),
    ],
}
CASES = AT_ONCE | BEGUN_FIRST | LAST
SINCE_5 = ["popping", "timers"]
STORED = {"batch": {"BatchTest": 100_003}, "tracemessage": {"RMQ_SYS_TRACE_TOPIC": 1}}  # At least.
# fmt: on


# -- Running them


@dataclass
class Stage:
    """A fresh broker, and the JVM with the examples of one version."""

    broker: Broker
    examples: Examples
    running: dict[str, list[Running]] = field(default_factory=dict)

    def begin(self, case: str) -> list[Running]:
        """Start the examples of a case one after the other: who sends has sent when the next one starts."""
        if case not in self.running:
            self.running[case] = []
            for run in CASES[case]:
                self.running[case].append(self.examples.start(run.main, run.arguments.split()))
                if run.prints in (SENT, SENT_TOO, STARTED, ANSWERED):
                    self.running[case][-1].await_text(run.prints, run.times, WITHIN_S)
        return self.running[case]


@pytest.fixture(scope="module", params=VERSIONS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    version: str = request.param
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True)) | {"namesrv": NAMESRV_PORT}
    with tempfile.TemporaryDirectory(prefix="duolog-examples-", ignore_cleanup_errors=True) as folder, the_port():
        home = Path(folder)
        with Broker(home / "data", SETTINGS, ports) as broker:
            for topic in NOT_MADE_BY_SENDING:
                remoting.create_topic(broker.rocketmq, topic, 4)
            examples = Examples(version, broker.namesrv, home)
            try:
                stage = Stage(broker, examples)
                for case in BEGUN_FIRST:
                    if version == "5.5" or case not in SINCE_5:
                        stage.begin(case)
                yield stage
            finally:
                examples.close()


@contextmanager
def the_port() -> Iterator[None]:
    """Hold the port that the examples have in them, as far as other runs of this file are concerned."""
    with Path(tempfile.gettempdir(), f"duolog-examples-{NAMESRV_PORT}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", NAMESRV_PORT))
            except OSError as error:
                skip_or_fail(f"the examples want port {NAMESRV_PORT} of 127.0.0.1: {error}")
        yield


def look(stage: Stage, case: str) -> None:
    """See what the examples of a case print, and shut them down."""
    begun = stage.begin(case)
    for run, running in zip(CASES[case], begun, strict=True):
        text = running.await_text(run.prints, run.times, WITHIN_S)
        assert run.prints == ANSWERED or not WRONG.search(text), text[-2000:]
        if run.prints == SENT:
            assert text.count(SENT) == run.times
        if run.check is not None:
            run.check(text)
    for topic, count in STORED.get(case, {}).items():
        eventually(f"messages of {topic}", partial(stored, stage, topic), count.__le__, WITHIN_S)
    for running in begun:
        running.stop()


def stored(stage: Stage, topic: str) -> int:
    return sum(end_offsets(stage.broker.kafka, topic).values())


@pytest.mark.parametrize("case", [case for case in CASES if case not in SINCE_5])
def test_example_prints_what_it_prints_at_home(stage: Stage, case: str) -> None:
    look(stage, case)


@pytest.mark.parametrize("stage", ["5.5"], indirect=True)
@pytest.mark.parametrize("case", SINCE_5)
def test_example_that_only_the_newer_version_has(stage: Stage, case: str) -> None:
    look(stage, case)
