"""The RocketMQ Java client as a Writer, and each of its three consumers as a Reader; JSON and binary headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.wire.clients.agent import Agent
from tests.wire.clients.jvm import ROCKETMQ_VERSIONS
from tests.wire.clients.message import Message, Position, Seen, seen_by_rocketmq_json

SEND_BATCH_BYTES_MAX = 1 << 20


class RocketmqJava:
    """DefaultMQProducer. Each way to send is a method of it; batches are never compressed by the client."""

    ways = ("sync", "async", "selector", "batch", "oneway")
    codecs = ("none", "zlib", "lz4", "zstd")

    def __init__(self, namesrv: str, agent: Agent, version: str, header: str) -> None:
        self.name = f"RocketMQ {ROCKETMQ_VERSIONS[version]} {header}"
        self._namesrv, self._agent = namesrv, agent

    def write(self, topic: str, messages: Sequence[Message], *, way: str, codec: str) -> list[Position | None]:
        sent = self._agent.call(
            "write_oneway" if way == "oneway" else "write",
            namesrv=self._namesrv,
            topic=topic,
            how=way,
            compress=codec,
            messages=[each.as_rocketmq_json() for each in messages],
        )
        if way == "oneway":
            return [None for _ in messages]
        return [(queue, offset) for queue, offset, _id, _offset_id in sent]


class RocketmqReader:
    """`kind` is push, lite or pull: DefaultMQPushConsumer, DefaultLitePullConsumer, DefaultMQPullConsumer."""

    def __init__(self, namesrv: str, agent: Agent, version: str, header: str, kind: str) -> None:
        self.name = f"RocketMQ {ROCKETMQ_VERSIONS[version]} {kind} {header}"
        self._namesrv, self._agent, self._kind = namesrv, agent, kind

    def read(self, topics: Mapping[str, int], within_s: float) -> list[Seen]:
        # A lite consumer of 4.9 has 20 threads and every queue's long poll holds one: it gets one topic, not all.
        shares = [{topic: count} for topic, count in topics.items()] if self._kind == "lite" else [dict(topics)]
        calls = [
            self._agent.start(
                f"read_{self._kind}", namesrv=self._namesrv, topics=share, timeout_ms=int(within_s * 1000)
            )
            for share in shares
        ]
        seen = [each for call in calls for each in call.wait(within_s + 10)]
        return [seen_by_rocketmq_json(each) for each in seen]
