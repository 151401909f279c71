"""The core of a broker: the owners of its state, its log, and what stands on both. No socket, no thread, no clock.

    Core(options, faults)  the owners of state, registered with the ledger; all empty
    core.open_log(...)     the log is recovered into them; then the door in, the way out, and the long polls work

`Broker` adds ports, threads and time; tests add a disk in memory and a clock that is moved. What a handler asks of its
broker by name is mostly here.
"""

import base64
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bridge.after_set_back import AfterSetBack
from bridge.config import Options, level_delays_ms
from bridge.delays import Delays
from bridge.families import Families
from bridge.faults import Faults
from bridge.gone import Gone
from bridge.half_messages import Halves
from bridge.kafka.group_coordinator import GroupCoordinator
from bridge.kafka.groups import Waiter
from bridge.kafka.metadata import MetadataCache
from bridge.kafka.work import Works
from bridge.ledger import Ledger
from bridge.lifetimes import Lifetimes
from bridge.metrics import Metrics
from bridge.poison import Poison
from bridge.positions import Positions
from bridge.producers import Producers
from bridge.publish import Publisher
from bridge.purgatory import Purgatory
from bridge.rates import Rates
from bridge.reading import QueueReader
from bridge.records import ClusterNamed
from bridge.request_keys import RequestKeys
from bridge.rocketmq.assignment import RequestModes
from bridge.rocketmq.batches import Batches
from bridge.rocketmq.connection import RocketMQConnection
from bridge.rocketmq.expected import Expected
from bridge.rocketmq.expired import Expired
from bridge.rocketmq.flow import Flow
from bridge.rocketmq.group_configs import GroupConfigs
from bridge.rocketmq.key_values import KeyValues
from bridge.rocketmq.lanes import LANES, Lane
from bridge.rocketmq.locks import Locks
from bridge.rocketmq.members import Members
from bridge.rocketmq.notices import Notices
from bridge.rocketmq.popped import Popped
from bridge.rocketmq.read_counts import ReadCounts
from bridge.rocketmq.resets import Resets
from bridge.schedules import Schedules
from bridge.topic_configs import broker_defaults
from bridge.topics import Topics, system_topics
from bridge.transactions import Transactions
from bridge.wall_time import WallTime
from bridge.watchdog import Watchdog
from store.entry import Appended, Part, Promise, Slot
from store.files import Files
from store.options import StoreOptions
from store.store import Store


class Core:
    """State and log, by the names that handlers use."""

    def __init__(self, options: Options, faults: Faults) -> None:
        """Make the owners of state; each registers with the ledger, in an order in which snapshots may be replayed."""
        self.options = options
        self.faults = faults
        self.watchdog = Watchdog()
        self.metrics = Metrics()
        self.rates = Rates(self.metrics.totals)
        self.poison = Poison()
        self.ledger = Ledger(self.poison)
        self.poison.attach(self.ledger)
        self._cluster = _Cluster(self.ledger)
        self.wall_time = WallTime(self.ledger, options.retention)
        self.topics = Topics(
            self.ledger,
            options.topics,
            system=system_topics(
                options.rocketmq.cluster, options.rocketmq.broker, len(level_delays_ms(options.delay.levels))
            ),
            config_defaults=broker_defaults(options),
        )
        self.positions = Positions(self.ledger, self.topics.__contains__, options.groups)
        self.producers = Producers(self.ledger, options.kafka)
        self.lifetimes = Lifetimes(self.ledger, options.delay)
        self.delays = Delays(self.ledger, self.topics, options.delay, self.metrics, self.poison)
        self.request_keys = RequestKeys(self.ledger, options.http)
        self.transactions = Transactions(self.ledger, self.topics, self.positions, self.producers, self.delays, options)
        self.isolation = self.transactions.isolation
        self.halves = Halves(self.ledger, options.txn, options.store.segment_bytes // 2)
        self.schedules = Schedules(self.ledger, self.topics, options.delay, self.metrics, self.poison)
        self.kafka_groups: GroupCoordinator[Waiter] = GroupCoordinator(options.groups)
        self.kafka_metadata = MetadataCache()
        self.kafka_works = Works()
        self.rocketmq_members: Members[RocketMQConnection] = Members(
            groups_max=options.rocketmq.groups_max,
            client_groups_max=options.rocketmq.client_groups_max,
            subscriptions_max=options.rocketmq.subscriptions_max,
            subscribed_bytes_max=options.rocketmq.subscribed_bytes_max,
            client_subscribed_bytes_max=options.rocketmq.client_subscribed_bytes_max,
        )
        self.rocketmq_groups = GroupConfigs(
            self.ledger, options.groups.count_max, options.rocketmq.group_config_bytes_max
        )
        self.rocketmq_key_values = KeyValues(self.ledger)
        self.rocketmq_is_write_wiped = False  # A tool asked that no route lets producers write here.
        self.rocketmq_notices = Notices()
        self.rocketmq_locks = Locks()
        self.rocketmq_resets = Resets()
        self.rocketmq_modes = RequestModes(self.ledger)
        self.rocketmq_popped = Popped(self.ledger, options.rocketmq.popped_bytes_max)
        self.rocketmq_expired = Expired(self.ledger, self.positions)
        self.after_set_back = AfterSetBack()
        self.gone = Gone(self.ledger, self.topics.__contains__)
        for owner in (
            self.positions,
            self.producers,
            self.delays,
            self.transactions,
            self.rocketmq_popped,
            self.rocketmq_expired,
        ):
            self.gone.add(owner.sweep)
        self.rocketmq_popping: set[tuple[str, int]] = set()  # Groups and queues that a pop has asked the disk for.
        self.rocketmq_expected = Expected()
        self.rocketmq_read_counts = ReadCounts()
        self.rocketmq_flow = Flow(options.rocketmq)
        self.rocketmq_batches = Batches()
        self.rocketmq_lanes = {kind: Lane(kind, self.rocketmq_flow, options.rocketmq.wait_ms) for kind in LANES}
        self.families = Families(self.kafka_groups, self.rocketmq_members)
        self.purgatory = Purgatory(
            options.limits.held_bytes_max,
            options.limits.connection_held_bytes_max,
            partial(faults.contain, kind="held request"),
        )
        self.topics.on_deleted = self.purgatory.on_deleted

    def open_log(
        self,
        files: Files,
        options: StoreOptions,
        now_ms: int,
        mono_ms: int,
        *,
        store_host: bytes,
        touch: Callable[[], None],
    ) -> None:
        """Recover, and make what stands on the log; `touch` is called when something was appended.

        `store_host` is the packed address of the RocketMQ port, as records and message ids carry it.
        Raises StoreError and OSError.
        """
        self.delays.begin(now_ms, files)
        self.store = Store.open(files, options, self.ledger, now_ms)
        self.rocketmq_flow.attach(self.store)
        turn_log = TurnLog(self.store, touch)
        self.ledger.attach(turn_log)
        self.wall_time.begin(self.store, now_ms, mono_ms)
        has_lost = self.poison.counts["state record"] > 0
        self.topics.attach(self.store, now_ms, clean=self.store.clean, has_lost=has_lost)
        self.publisher = Publisher(
            turn_log,
            self.producers,
            self.transactions,
            self.delays,
            self.schedules,
            self.halves,
            self.lifetimes,
            self.metrics,
            self.wall_time,
            self.options,
        )
        self.reader = QueueReader(self.store, self.transactions.isolation, self.metrics, self.options)
        self.publisher.store_host = self.reader.store_host = store_host
        self.halves.attach(self.store, self.topics, store_host)
        self.store.on_visible = self.purgatory.on_visible
        self.store.contain = partial(self.faults.contain, kind="answer")
        self._cluster.name_if_new(now_ms)
        self.delays.attach(self.store, self.publisher, self._cluster.id)
        self.schedules.attach(self.publisher)
        self.wall_time.on_step, self.wall_time.on_set_back = self.transactions.clock_stepped, self._clock_was_set_back
        self.wall_time.observe(now_ms, mono_ms)
        if self.store.has_time_steps:
            self._clock_was_set_back(now_ms)  # What a wrong clock has left in the log is far off still.
        self.store.checkpoint_after_replay(mono_ms)
        self.after_set_back.run_all()

    def _clock_was_set_back(self, now_ms: int) -> None:
        """The clock was ahead, and is right again: what waits for a time that is far off by now waits no longer for it.

        Nothing here may fail half-way: what raises StoreError comes last.
        """
        owners = (self.rocketmq_popped, self.halves.state, self.transactions)
        self.after_set_back.begin([owner.clock_was_set_back(now_ms) for owner in owners])
        self.delays.clock_was_set_back(now_ms)
        self.schedules.clock_was_set_back(now_ms)

    def is_alive(self, group: str) -> bool:
        """Whether a group has members, or an open transaction may commit for it: then it does not expire."""
        return self.families.active(group) is not None or self.transactions.coordinator.holds(group)

    @property
    def cluster_id(self) -> str:
        return self._cluster.id


class TurnLog:
    """The store's append, with a write at the end of the turn for what was appended in it."""

    __slots__ = ("_append", "_append_freeing", "_touch", "promise")

    def __init__(self, store: Store, touch: Callable[[], None]) -> None:
        self._append, self._append_freeing = store.append, store.append_freeing
        self._touch = touch
        self.promise: Callable[[], Promise] = store.promise

    def append(self, entries: Sequence[Part], now_ms: int) -> Appended:
        self._touch()
        return self._append(entries, now_ms)

    def append_freeing(self, entries: Sequence[Part], now_ms: int) -> Appended:
        self._touch()
        return self._append_freeing(entries, now_ms)


class _Cluster:
    """The id that Kafka clients know this data directory by: 16 random bytes, base64, as Kafka's own (Uuid.java)."""

    def __init__(self, ledger: Ledger) -> None:
        self.id = ""
        self._ledger = ledger
        ledger.own(ClusterNamed, self._replay)
        ledger.on_snapshot(self._snapshot)

    def name_if_new(self, now_ms: int) -> None:
        if not self.id:
            name = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            self._ledger.commit([ClusterNamed(name)], now_ms)

    def _replay(self, record: ClusterNamed, slot: Slot) -> None:
        self.id = record.cluster_id

    def _snapshot(self) -> Iterable[ClusterNamed]:
        if self.id:
            yield ClusterNamed(self.id)
