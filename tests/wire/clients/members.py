"""Group members in the Java agents: a Kafka consumer that polls on its own thread, a RocketMQ push consumer.

Both keep what they saw, in order, with the time of arrival.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.kit.eventually import eventually
from tests.wire.clients.agent import Agent
from tests.wire.clients.message import Seen, seen_by_kafka_json, seen_by_rocketmq_json

_names = itertools.count()


@dataclass(frozen=True, slots=True)
class Arrival:
    seen: Seen
    at_ms: int
    attempt: int = 0  # How often it had failed before.

    @property
    def text(self) -> str:
        return self.seen.text


@dataclass(frozen=True, slots=True)
class Event:
    """The calls of a rebalance listener."""

    what: str  # assigned, revoked, lost
    partitions: tuple[str, ...]
    at_ms: int


class KafkaMember:
    """A member of a classic consumer group. Leaving the block closes it properly. One text for topics is a pattern."""

    def __init__(self, agent: Agent, bootstrap: str, group: str, topics: Sequence[str], **config: object) -> None:
        self._agent = agent
        self._name = f"member-{next(_names)}"
        self._open = True
        self.arrivals: list[Arrival] = []
        self.events: list[Event] = []
        settings = {name.replace("_", "."): str(value) for name, value in config.items()}
        what: dict[str, object] = {"pattern": topics} if isinstance(topics, str) else {"topics": list(topics)}
        agent.call("join", name=self._name, bootstrap=bootstrap, **what, config={"group.id": group} | settings)

    def act(self, action: str, **arguments: Any) -> Any:
        return self._agent.call("member", name=self._name, action=action, **arguments)

    @property
    def texts(self) -> list[str]:
        """Bodies of all that it saw until now, in order."""
        if self._open:
            self._take(self.act("seen"))
        return [each.text for each in self.arrivals]

    @property
    def assignment(self) -> list[str]:
        partitions: list[str] = self.act("assignment")
        return partitions

    def await_texts(self, count: int, within_s: float = 10.0) -> list[str]:
        return eventually("messages seen", lambda: self.texts, lambda texts: len(texts) >= count, within_s)

    def await_assignment(self, count: int, within_s: float = 10.0) -> list[str]:
        return eventually("partitions", lambda: self.assignment, lambda owned: len(owned) == count, within_s)

    def leave(self) -> None:
        if self._open:
            self._open = False
            self._take(self._agent.call("leave", name=self._name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()

    def _take(self, drained: dict[str, Any]) -> None:
        self.arrivals += [Arrival(seen_by_kafka_json(each), each["at_ms"]) for each in drained["seen"]]
        self.events += [Event(each["what"], tuple(each["partitions"]), each["at_ms"]) for each in drained["events"]]


class PushMember:
    """A DefaultMQPushConsumer. Leaving the block shuts it down, which stores its offsets."""

    def __init__(self, agent: Agent, namesrv: str, group: str, topics: Sequence[str], **arguments: Any) -> None:
        self._agent = agent
        self._name = f"push-{next(_names)}"
        self._open = True
        self.group = group
        self.arrivals: list[Arrival] = []
        self.started_ms = 0
        agent.call("open", name=self._name, namesrv=namesrv, group=group, topics=dict.fromkeys(topics, 0), **arguments)

    @property
    def texts(self) -> list[str]:
        if self._open:
            self._take(self._agent.call("seen", name=self._name))
        return [each.text for each in self.arrivals]

    @property
    def queues(self) -> list[int]:
        """The queue ids that it owns, of all its topics."""
        owned: dict[str, list[int]] = self._agent.call("queues", name=self._name)
        return sorted(itertools.chain.from_iterable(owned.values()))

    def await_texts(self, count: int, within_s: float = 10.0) -> list[str]:
        return eventually("messages seen", lambda: self.texts, lambda texts: len(texts) >= count, within_s)

    def suspend(self, *, on: bool) -> None:
        """Stop asking for messages, or go on."""
        self._agent.call("suspend", name=self._name, on=on)

    def await_queues(self, count: int, within_s: float = 10.0) -> list[int]:
        return eventually("queues owned", lambda: self.queues, lambda owned: len(owned) == count, within_s)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._take(self._agent.call("close", name=self._name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _take(self, drained: dict[str, Any]) -> None:
        self.started_ms = drained["started_ms"]
        self.arrivals += [
            Arrival(seen_by_rocketmq_json(each), each["at_ms"], each["attempt"]) for each in drained["seen"]
        ]
