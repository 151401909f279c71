"""The list of all duties, which is the background work that runs at deadlines. `Ticker` runs them.

    register(core, check_backs, add)   adds each duty with its name, its next deadline and its function

A duty that is added with `is_wall=True` has deadlines of the wall clock; all others have monotonic deadlines. Duties of
upkeep, with `is_upkeep=True`, may run a little late. Unit tests register the same duties and run them by a clock that
the test sets.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from duolog.bridge.core import Core
from duolog.bridge.kafka.group_membership import expire_sessions
from duolog.bridge.rocketmq.consuming import heartbeats
from duolog.bridge.rocketmq.producing.check_backs import CheckBackLoop


class Add(Protocol):
    """Adds a duty: `run(now_ms, mono_ms)` is called at each deadline (`Ticker.add`)."""

    def __call__(
        self,
        name: str,
        next_deadline_ms: Callable[[], int | None],
        run: Callable[[int, int], object],
        *,
        is_wall: bool = False,
        is_upkeep: bool = False,
    ) -> None: ...


def register(core: Core, check_backs: CheckBackLoop, add: Add) -> None:
    """Add all duties. Duties that are due at the same time run in this order, those of upkeep last."""
    _add_requests(core, add)
    _add_messages(core, check_backs, add)
    _add_upkeep(core, partial(add, is_upkeep=True))


def _add_requests(core: Core, add: Add) -> None:
    """Add the duties of requests and members: leases, long polls, sessions, back-pressure."""
    rocketmq, kafka, leases, purgatory = core.rocketmq_context, core.kafka_context, core.leases, core.purgatory
    members, locks, notifications = rocketmq.groups.members, rocketmq.groups.locks, rocketmq.groups.change_notifications
    admission = rocketmq.requests.admission
    calls = core.server.timed_calls
    add("timed calls", calls.next_deadline_mono_ms, lambda now_ms, mono_ms: calls.run(mono_ms))
    add("leases", leases.next_deadline_ms, lambda now_ms, mono_ms: leases.expire(mono_ms))
    add("held requests", purgatory.next_deadline_ms, lambda now_ms, mono_ms: purgatory.advance(mono_ms))
    add("kafka groups", kafka.groups.next_deadline_ms, lambda now_ms, mono_ms: expire_sessions(kafka, mono_ms))
    add(
        "rocketmq members",
        members.heartbeats.next_deadline_mono_ms,
        lambda now_ms, mono_ms: heartbeats.sweep(members, locks, notifications, mono_ms),
        is_upkeep=True,
    )
    add(
        "rocketmq senders",
        admission.next_deadline_mono_ms,
        lambda now_ms, mono_ms: admission.check_progress(mono_ms),
        is_upkeep=True,
    )


def _add_messages(core: Core, check_backs: CheckBackLoop, add: Add) -> None:
    """Add the duties of messages, offsets and transactions."""
    rocketmq, positions, transactions = core.rocketmq_context, core.group_offsets, core.transactions
    popped, reviver, delays, schedules = rocketmq.pop.checkpoints, core.reviver, core.delays, core.schedules
    add("popped messages", popped.next_deadline_ms, lambda now_ms, mono_ms: reviver.run(now_ms), is_wall=True)
    add("positions", positions.next_deadline_mono_ms, lambda now_ms, mono_ms: positions.advance(mono_ms, now_ms))
    add(
        "transactions", transactions.next_deadline_ms, lambda now_ms, mono_ms: transactions.expire(now_ms), is_wall=True
    )
    add("half messages", check_backs.next_deadline_ms, check_backs.run, is_wall=True)
    add("tables of timers", delays.timers.tree.next_deadline_ms, delays.timers.tree.run)
    marked = _unmarked if core.tracing is None else core.tracing.delivering
    add("delayed messages", delays.next_deadline_ms, marked(delays.run), is_wall=True)
    add("schedules", schedules.next_deadline_ms, marked(schedules.run), is_wall=True)


def _unmarked(run: Callable[[int, int], object]) -> Callable[[int, int], object]:
    return run


def _add_upkeep(core: Core, add: Add) -> None:
    """Add the duties of figures, of state that nothing needs any more, and of maintenance."""
    rates, counts, deleted_topics = core.rates, core.rocketmq_context.groups.consume_counts, core.deleted_topics
    maintenance, connections, after = core.maintenance, core.server.connections, core.clock_set_back
    history, topic_rates, careful_ms = core.history, core.topic_rates, core.wall_time.careful_ms
    sealed = core.sealed_data
    add("check of sealed data", sealed.next_deadline_mono_ms, lambda now_ms, mono_ms: sealed.advance(mono_ms))
    audit = core.security.audit
    add("audit", audit.next_deadline_mono_ms, lambda now_ms, mono_ms: audit.report(mono_ms))
    add("poison list", core.poison_records.next_deadline_mono_ms, core.poison_records.save)
    add("rates", rates.next_deadline_ms, lambda now_ms, mono_ms: rates.sample(mono_ms, now_ms))
    add("history", history.next_deadline_ms, lambda now_ms, mono_ms: history.sample(mono_ms, now_ms))
    add("rates of topics", topic_rates.next_deadline_ms, lambda now_ms, mono_ms: topic_rates.run(mono_ms))
    add("read messages", counts.next_deadline_mono_ms, lambda now_ms, mono_ms: counts.advance(mono_ms))
    add("deleted topics", deleted_topics.next_deadline_mono_ms, lambda now_ms, mono_ms: deleted_topics.run())
    add("times after a clock was set back", after.next_deadline_mono_ms, lambda now_ms, mono_ms: after.run())
    add(
        "background duties",
        maintenance.next_deadline_ms,
        lambda now_ms, mono_ms: maintenance.run(careful_ms(now_ms, mono_ms), mono_ms),
    )
    add("connections", connections.next_deadline_ms, lambda now_ms, mono_ms: connections.sweep(mono_ms))
