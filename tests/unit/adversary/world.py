"""A whole broker core with state of every kind, and the invariants after each request of an adversary.

    world = World(seed)
    attacker = world.kafka()                     # or world.rocketmq()
    attacker.send(payload, kind="METADATA 12")   # one frame; the turn's work is counted
    world.end(attacker)                          # time passes; checks that all is answered and released

What does not hold is collected in `world.findings`, so that a run reports all it finds.
"""

import random
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from duolog.bridge.config import GroupsOptions, Options
from duolog.bridge.kafka.requests.connection import KafkaConnection
from duolog.bridge.net.connection import Connection
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.protocol.errors import ProtocolError
from duolog.protocol.framing import FrameReader
from duolog.protocol.kafka.api_messages import ApiKey
from duolog.protocol.kafka.compression import Codec
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.options import StoreOptions
from tests.kit.core import ManualCore
from tests.kit.faults import StrictFaults
from tests.kit.sockets import connect
from tests.unit.adversary import budget, hostile, kafka_requests, rocketmq_requests, scenes
from tests.unit.bridge.batches import batch

STORE = StoreOptions(segment_bytes=16 << 20, reserve_bytes=0, tail_bytes=1 << 20)
WAIT_MS = 350_000
STEPS, STEPS_MAX = 2, 8  # The number of waits; more for held requests, until the idle connection is closed.
BROKEN_RATIO = 0.1  # The ratio of mutated requests with a fault at any byte.


@dataclass
class Finding:
    """An invariant that a request broke."""

    kind: str
    what: str
    frames: list[bytes]

    def __str__(self) -> str:
        return f"{self.kind}: {self.what} <- {[frame[:200] for frame in self.frames]}"


class Attacker:
    """One connection of the adversary."""

    def __init__(self, world: "World", connection: Connection) -> None:
        self.world, self.connection = world, connection
        self.transport = connect(connection, world.loop)
        self.kinds: list[str] = []
        self.frames: list[bytes] = []
        self.unanswered = 0  # Requests without their answer.

    def send(self, payload: bytes, kind: str, *, is_answered: bool = True) -> None:
        """Send one frame, and run a turn of the loop."""
        if self.connection.closed:
            return
        self.kinds.append(kind)
        self.frames.append(payload)
        if is_answered:
            self.unanswered += 1
        self.world.requests += 1
        self._work(kind, payload, self.connection.data_received, struct.pack(">i", len(payload)) + payload)
        while self._work(kind, payload, self.world.loop.turn_once):
            pass

    def _work(self, kind: str, payload: bytes, call: Callable[..., Any], *arguments: Any) -> Any:
        """Run one turn of the loop, and compare its work with the budget."""
        with budget.counted(calls=self.world.counts_calls) as work:
            result = self.world.guarded(self, call, *arguments)
        self.world.judge(kind, work, [payload])
        return result

    def say(self, payload: bytes) -> None:
        """Send a frame of a scene, whose work is not checked."""
        self.connection.data_received(struct.pack(">i", len(payload)) + payload)
        self.world.loop.turn()

    def answers(self) -> int:
        """The number of requests that were answered."""
        frames = FrameReader(1 << 30).feed(bytes(self.transport.taken))
        if isinstance(self.connection, KafkaConnection):
            return len(frames)
        return sum(map(_is_response, frames))

    @property
    def is_done(self) -> bool:
        """Return whether all requests are answered, or the connection is closed."""
        return self.connection.closed or self.answers() >= self.unanswered

    @property
    def kind(self) -> str:
        return " + ".join(self.kinds)


def _is_response(frame: memoryview) -> bool:
    """Distinguish answers from requests of the broker. A forwarded header may exceed a client's limit as JSON."""
    try:
        return remoting.decode(frame).is_response
    except ProtocolError:
        return True


class NotedFaults(StrictFaults):
    """Contains faults as a broker in production does, and keeps their tracebacks; each fault is a finding."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.noted: list[str] = []

    def contain(self, error: BaseException, kind: str, peer: str = "") -> None:
        self.counts[kind] += 1
        self.noted.append(f"fault in {kind}: {''.join(traceback.format_exception(error)[-4:])}")


class World(ManualCore):
    """The core, its state, and two well-behaved clients."""

    faults: NotedFaults

    def __init__(self, seed: int, *, counts_calls: bool = True) -> None:
        options = Options(groups=GroupsOptions(initial_rebalance_delay_ms=0))
        super().__init__(options, store=STORE, faults=NotedFaults)
        self.rng = random.Random(seed)
        self.counts_calls = counts_calls
        self.findings: list[Finding] = []
        self.requests = 0
        self._numbers = 0
        executors = self.store.executors
        executors.readers = executors.background = executors.searches = budget.OffTheLoop()
        self.delays.timers.tree.context.executor = budget.OffTheLoop()
        self._fill()
        self.kafka_client: Attacker
        self.rocketmq_client: Attacker
        self.stage: Attacker  # Sends the scenes whose connection does not matter.
        question = kafka_requests.valid(ApiKey.METADATA, 12, {"name": "quiet", "topic_id": 0}).encode()
        self._kafka_question = struct.pack(">i", len(question)) + question
        ext = {"topic": "quiet", "queueId": "0"}
        command = remoting.request(RequestCode.GET_MAX_OFFSET, 1, ext)
        self._rocketmq_question = b"".join(remoting.encode(command))
        self._connect_others()

    # -- State

    def replenish(self) -> None:
        """Create the topics again that a request has deleted."""
        for name, queues in (("orders", 4), ("doomed", 1), ("quiet", 1)):
            self.topic(name, queues)

    def _fill(self) -> None:
        now_ms = self.clock.now_ms()
        self.replenish()
        orders = self.topic("orders")
        for codec in Codec:
            self.publisher.publish_batch(orders, 0, batch([b"a", b"b"], codec=codec), now_ms)
        messages = [Message("", b"m", b"UNIQ_KEY\x01U%d\x02TAGS\x01paid\x02" % n, born_ms=now_ms) for n in range(20)]
        for queue_id in range(4):
            self.publisher.publish_messages(orders, queue_id, messages, now_ms)
        self.group_offsets.commit("idle", [CommittedOffset(orders.queues[0].key, 1)], now_ms)
        self.settle()

    def kafka(self) -> Attacker:
        return Attacker(self, KafkaConnection(self.server, self.kafka_context))

    def rocketmq(self) -> Attacker:
        return Attacker(self, RocketMQConnection(self.rocketmq_connections))

    # -- Invariants

    def guarded(self, attacker: Attacker, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the broker; an exception is a finding."""
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 - every one of them is what is looked for
            self.found(attacker, f"{type(error).__name__}: {error}"[:300])
            return None

    def found(self, attacker: Attacker, what: str) -> None:
        self.note(attacker.kind, what, list(attacker.frames))

    def note(self, kind: str, what: str, frames: list[bytes]) -> None:
        """Add a finding."""
        self.findings.append(Finding(kind, what, frames))

    def judge(self, kind: str, work: budget.Work, frames: list[bytes]) -> None:
        """Compare the work of one turn with the budget; add the contained faults to the findings."""
        self._note_faults(kind, frames)
        if work.units > budget.UNITS_MAX:
            self.note(kind, f"{work.units} units of work in one turn", frames)
        elif work.cpu_ms > budget.CPU_MS_MAX * (4 if self.counts_calls else 1):
            self.note(kind, f"{work.cpu_ms:.0f} ms of processor time in one turn", frames)

    def _note_faults(self, kind: str, frames: list[bytes]) -> None:
        for what in self.faults.noted:
            self.note(kind, what, frames)
        self.faults.noted.clear()

    def end(self, *attackers: Attacker) -> None:
        """Advance the clock, send requests as other clients, close the connections; add what fails to the findings."""
        first = attackers[0]
        for step in range(STEPS_MAX):
            if step >= STEPS and all(each.is_done for each in attackers):
                break
            self.guarded(first, self.pass_ms, WAIT_MS)
            self._ask_as_others(first)
        for attacker in attackers:
            if not attacker.is_done:
                self.found(attacker, f"{attacker.answers()} of {attacker.unanswered} requests answered")
            self.guarded(attacker, attacker.connection.close, "")
        self.guarded(first, self.settle)
        self.guarded(first, self.replenish)
        self._check_given_back(first)
        self._note_faults(first.kind, first.frames)

    def _ask_as_others(self, attacker: Attacker) -> None:
        for client, question in self._others():
            client.transport.taken.clear()
            client.connection.data_received(question)
            self.guarded(attacker, self.loop.turn)
            if client.connection.closed:
                self.found(attacker, f"another client's {client.connection.wire} connection was closed")
                self._connect_others()
            elif not client.answers():
                self.found(attacker, f"another client's {client.connection.wire} request was not answered")

    def next_number(self) -> int:
        """Return a number that no scene of this world has used."""
        self._numbers += 1
        return self._numbers

    def _connect_others(self) -> None:
        self.kafka_client, self.rocketmq_client, self.stage = self.kafka(), self.rocketmq(), self.kafka()
        for client, question in self._others():
            client.connection.data_received(question)  # A connection without a first request is closed.
        self.loop.turn()

    def _others(self) -> list[tuple[Attacker, bytes]]:
        """Return the well-behaved clients, each with its request."""
        kafka, rocketmq = self._kafka_question, self._rocketmq_question
        return [(self.kafka_client, kafka), (self.stage, kafka), (self.rocketmq_client, rocketmq)]

    def _check_given_back(self, attacker: Attacker) -> None:
        """Check that each counter of memory and requests of connections is zero, as for idle clients."""
        flow = self.rocketmq_context.requests.admission
        kept = {
            "unsent bytes": self.server.connections.answer_bytes,
            "bytes of unfinished frames": self.server.connections.request_bytes,
            "connections": len(self.server.connections) - 3,
            "held requests": len(self.purgatory),
            "RocketMQ requests in work": sum(flow.in_work) + sum(flow.reading) + flow.waiting,
            "RocketMQ requests that wait for their turn": sum(
                map(len, self.rocketmq_context.requests.background_queues.values())
            ),
        }
        for what, count in kept.items():
            if count:
                self.found(attacker, f"{count} {what} were kept")

    # -- Requests of both protocols

    def attack_kafka(self, attacker: Attacker, key: ApiKey, version: int, mutations: int) -> None:
        """Send one request of the row with `mutations` of its fields replaced."""
        request = kafka_requests.valid(key, version, scenes.of_kafka(self.stage, key))
        for _ in range(mutations):
            kafka_requests.mutate(request, self.rng)
        payload, is_answered = request.encode(), request.is_answered
        if mutations and self.rng.random() < BROKEN_RATIO:
            payload, is_answered = hostile.broken(self.rng, payload), key != ApiKey.PRODUCE  # It may say acks=0 now.
        attacker.send(payload, f"{key.name} {version}", is_answered=is_answered)

    def attack_rocketmq(self, attacker: Attacker, code: RequestCode, mutations: int) -> None:
        """Send one request of the row with `mutations` of its fields replaced."""
        request = rocketmq_requests.valid(code, self.rng, scenes.of_rocketmq(attacker, code))
        for _ in range(mutations):
            request.mutate(self.rng)
        payload = request.encode()
        is_answered = not request.is_oneway and code != RequestCode.END_TRANSACTION
        if mutations and self.rng.random() < BROKEN_RATIO:
            payload, is_answered = hostile.broken(self.rng, payload), False
        attacker.send(payload, code.name, is_answered=is_answered)
