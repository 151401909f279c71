"""A `Core` on a disk in memory, without sockets, threads and a clock of its own; the test drives it.

What a turn appends is written and synced at the end of the turn, unless `is_stalled`: then answers that wait for the
log are not sent until `settle`. Subclasses make connections, for example `KafkaBench`
(`tests/unit/bridge/kafka/bench.py`).
"""

from typing import Any, cast

from duolog.bridge.config import LimitsOptions, Options
from duolog.bridge.core import Core
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.net.connections import Bounds
from duolog.bridge.net.server import Server
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.messages.message_id import pack_host
from duolog.store.options import StoreOptions
from tests.kit.clock import ManualClock
from tests.kit.disk import CrashDisk
from tests.kit.duties import ManualDuties
from tests.kit.faults import StrictFaults, reraise
from tests.kit.sockets import ManualLoop

UNANSWERED_MAX = 8
IDLE_MS = 600_000
FRAME_BYTES_MAX = {"kafka": 1 << 23, "rocketmq": 1 << 20}
STORE_HOST = pack_host("127.0.0.1", 10911)
PORTS = {"kafka": 9092, "rocketmq": 10911, "namesrv": 9876, "http": 9644}
LISTENING = {name: ("127.0.0.1", port) for name, port in PORTS.items()}


class Members(set[str]):
    """A set of groups that have members in the other client protocol."""

    def has_members(self, group: str) -> bool:
        return group in self


class ManualCore(Core):
    """The core of a broker on a disk in memory, with a clock that the test moves."""

    advertised_host = "broker.example"

    def __init__(
        self,
        options: Options | None = None,
        disk: CrashDisk | None = None,
        store: StoreOptions | None = None,
        now_ms: int | None = None,
        faults: type[StrictFaults] = StrictFaults,
        clock: ManualClock | None = None,
    ) -> None:
        self.disk = disk or CrashDisk()
        self.clock: ManualClock
        self.loop = ManualLoop()
        self.faults: StrictFaults  # A fault raises in the test, unless the test sets `faults.is_strict = False`.
        clock = clock or ManualClock()
        super().__init__(options or Options(), faults(clock.mono_ms, reraise), clock)
        if now_ms is not None:
            self.clock.set_now_ms(now_ms)  # Before the recovery, because what is due may depend on it.
        self.is_stalled = False  # While True, nothing is synced, so no answer that waits for the log is sent.
        bounds = {wire: Bounds(limit, UNANSWERED_MAX, IDLE_MS) for wire, limit in FRAME_BYTES_MAX.items()}
        server = Server(
            cast(Any, self.loop), self.clock, LimitsOptions(), bounds, self._end_turn, self.faults, self.watchdog
        )
        self.open_log(
            self.disk,
            store or StoreOptions(),
            self.clock.now_ms(),
            self.clock.mono_ms(),
            store_host=STORE_HOST,
            server=server,
            addresses=Addresses(self.advertised_host, LISTENING),
        )
        self.duties = ManualDuties(self)
        self.settle()

    # -- Time and the log

    def _end_turn(self) -> None:
        self.wall_time.observe(self.clock.now_ms(), self.clock.mono_ms())
        self.store.write()
        if not self.is_stalled:
            self._sync()

    def settle(self) -> None:
        """Write and sync the log; answers that waited for it are sent."""
        self.settle_log()
        self.server.flush()
        self.loop.turn()

    def settle_log(self) -> None:
        """Write and sync the log in the middle of a turn of the loop."""
        self.wall_time.observe(self.clock.now_ms(), self.clock.mono_ms())
        self.store.write()
        self._sync()

    def _sync(self) -> None:
        while task := self.store.durability.sync_wanted(background=True):
            try:
                task.run()
            except OSError as error:
                self.store.durability.synced(task, error)
            else:
                self.store.durability.synced(task, None)

    def pass_ms(self, ms: int) -> None:
        """Advance the clock, and run the duties that are due."""
        self.clock.pass_ms(ms)
        self.wall_time.observe(self.clock.now_ms(), self.clock.mono_ms())
        self.duties.run(self.clock.now_ms(), self.clock.mono_ms())
        self.settle()

    def sweep(self) -> int:
        """Remove the state of deleted topics; return the number of slices that it took."""
        slices = 0
        while self.deleted_topics.next_deadline_mono_ms() is not None:
            self.deleted_topics.run()
            slices += 1
        return slices

    # -- Topics and messages

    def topic(self, name: str = "orders", queues: int = 2, **configs: str) -> Topic:
        """Return the topic, which is created if necessary; the names of configs have `_` for `.`."""
        spelled = {key.replace("_", "."): value for key, value in configs.items()}
        found = self.topics.get(name) or self.topics.create(name, queues, spelled, self.clock.now_ms())[0]
        self._end_turn()
        return found

    def publish(self, topic: Topic, *bodies: bytes, tag: str = "", queue_id: int = 0) -> None:
        """Append messages of a RocketMQ producer, one unit for each, and make them visible."""
        raw = f"TAGS\x01{tag}\x02".encode() if tag else b""
        for body in bodies:
            one = Message("", body, raw, born_ms=self.clock.now_ms())
            self.publisher.publish_messages(topic, queue_id, [one], self.clock.now_ms())
        self.settle()
