"""The duties of a broker's core: what is done at which time. The ticker runs them, in tests the clock that is moved.

    prepare(broker, callbacks, mono_ms)   makes the parts that need the open store and the time
    register(broker, add)                 names each duty with its next deadline and its function

A duty of the wall clock is one that waits for a date; all others count monotonic time.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from duolog.bridge.kafka.group_membership import deliver
from duolog.bridge.maintenance import Maintenance, Slices
from duolog.bridge.rocketmq.consuming import heartbeats
from duolog.bridge.rocketmq.pop.revive import revive
from duolog.bridge.rocketmq.producing.half_messages import CheckBackLoop
from duolog.bridge.state.leases import Leases
from duolog.bridge.transactions.check_callbacks import Callbacks
from duolog.store.index.queue import Queue

if TYPE_CHECKING:
    from duolog.bridge.broker import Broker


class Add(Protocol):
    """Takes a duty: `run(now_ms, mono_ms)` is called at each deadline (`Ticker.add`)."""

    def __call__(
        self,
        name: str,
        next_deadline_ms: Callable[[], int | None],
        run: Callable[[int, int], object],
        *,
        is_wall: bool = False,
    ) -> None: ...


def prepare(broker: "Broker", callbacks: Callbacks, mono_ms: int) -> None:
    """Make the parts of the broker that need its open store and the time."""
    broker.maintenance = Maintenance(
        broker.store,
        lambda: [*broker.topics.all()],
        partial(_first_kept, broker),
        partial(_expire, broker),
        broker.options.retention.check_interval_ms,
        mono_ms,
        partial(broker.faults.contain, kind="retention of a queue"),
    )
    broker.check_backs = CheckBackLoop(broker, callbacks)
    broker.leases = Leases(broker.store, broker.options.leases)


def register(broker: "Broker", add: Add) -> None:
    """Name all duties in the order in which those that are due together run."""
    leases, purgatory, groups = broker.leases, broker.purgatory, broker.kafka_groups
    members, flow, popped = broker.rocketmq_members, broker.rocketmq_admission, broker.rocketmq_pop_checkpoints
    positions, transactions, checks = broker.positions, broker.transactions, broker.check_backs
    delays, schedules, rates = broker.delays, broker.schedules, broker.rates
    counts, maintenance = broker.rocketmq_consume_counts, broker.maintenance
    add("leases", leases.next_deadline_ms, lambda now_ms, mono_ms: leases.expire(mono_ms))
    add("held requests", purgatory.next_deadline_ms, lambda now_ms, mono_ms: purgatory.advance(mono_ms))
    add("kafka groups", groups.next_deadline_ms, lambda now_ms, mono_ms: deliver(groups.expire(mono_ms)))
    add("rocketmq members", members.next_deadline_mono_ms, lambda now_ms, mono_ms: heartbeats.sweep(broker, mono_ms))
    add("rocketmq senders", flow.next_deadline_mono_ms, lambda now_ms, mono_ms: flow.look(mono_ms))
    add("popped messages", popped.next_deadline_ms, lambda now_ms, mono_ms: revive(broker, now_ms), is_wall=True)
    add("positions", positions.next_deadline_mono_ms, lambda now_ms, mono_ms: positions.advance(mono_ms, now_ms))
    add(
        "transactions", transactions.next_deadline_ms, lambda now_ms, mono_ms: transactions.expire(now_ms), is_wall=True
    )
    add("half messages", checks.next_deadline_ms, checks.run, is_wall=True)
    add("far timers", delays.far.next_deadline_ms, delays.far.run)
    add("delayed messages", delays.next_deadline_ms, delays.run, is_wall=True)
    add("schedules", schedules.next_deadline_ms, schedules.run, is_wall=True)
    add("poison list", broker.poison.next_deadline_mono_ms, broker.poison.save)
    add("rates", rates.next_deadline_ms, lambda now_ms, mono_ms: rates.sample(mono_ms, now_ms))
    add("read messages", counts.next_deadline_mono_ms, lambda now_ms, mono_ms: counts.advance(mono_ms))
    add("deleted topics", broker.gone.next_deadline_mono_ms, lambda now_ms, mono_ms: broker.gone.run())
    after = broker.after_set_back
    add("times after a clock was set back", after.next_deadline_mono_ms, lambda now_ms, mono_ms: after.run())
    careful_ms = broker.wall_time.careful_ms
    add(
        "background duties",
        maintenance.next_deadline_ms,
        lambda now_ms, mono_ms: maintenance.run(careful_ms(now_ms, mono_ms), mono_ms),
    )


def _expire(broker: "Broker", now_ms: int) -> Slices:
    """Let go of groups and transactional ids that nobody uses, and of transactions that nobody can read."""
    yield from broker.positions.expire(now_ms, broker.is_alive)
    yield from broker.transactions.tidy(now_ms)


def _first_kept(broker: "Broker", queue: Queue) -> int | None:
    """Say from which offset on retention must leave a queue alone; None: it may take all."""
    first_kept = broker.halves.first_kept(queue)
    return broker.delays.first_kept(queue) if first_kept is None else first_kept
