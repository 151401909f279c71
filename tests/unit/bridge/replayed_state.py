"""The bridge's state on a log in memory, and a picture of it that two states can be compared by."""

from dataclasses import dataclass

from duolog.bridge.config import Options
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.records import codec
from duolog.bridge.state import topic_configs
from duolog.bridge.state.group_offsets import GroupOffsets
from duolog.bridge.state.producers import Producers
from duolog.bridge.state.system_topics import system_topics
from duolog.bridge.state.topics import Topics
from duolog.store.entry import EntrySlot
from duolog.store.index.queue import QUEUE_ID_BITS
from duolog.store.state_log import StateLog
from tests.kit.memory_log import MemoryLog

NOW = 1_700_000_000_000


@dataclass
class State:
    state_log: StateLog
    topics: Topics
    group_offsets: GroupOffsets
    producers: Producers

    def picture(self) -> object:
        """All that replay must give again, in values that compare; what belonged to deleted topics is removed first."""
        for owner in (self.group_offsets, self.producers):
            list(owner.sweep(lambda key: key >> QUEUE_ID_BITS not in self.topics))
        return (
            sorted(
                (
                    t.number,
                    t.name,
                    t.id,
                    t.perm,
                    t.created_ms,
                    t.queue_count,
                    dict(t.configs),
                    t.settings,
                    t.origins,
                    t.epochs,
                )
                for t in self.topics.all()
            ),
            self.topics.next_number,
            {group: dict(self.group_offsets.all_of(group)) for group in self.group_offsets.groups()},
            {name: group.commit_ms for name, group in self.group_offsets._groups.items()},
            self.group_offsets._count,
            [(name, w.epoch, w.next_sequence, w.batches) for name, w in self.producers._windows.items()],
            self.producers._reserved,
        )


def new_state(options: Options | None = None) -> State:
    options = options or Options()
    state_log = StateLog(codec, PoisonRecords())
    catalog = Topics(
        state_log,
        options.topics,
        system=system_topics("DefaultCluster", "duolog"),
        config_defaults=topic_configs.broker_defaults(options),
    )
    positions = GroupOffsets(state_log, catalog.__contains__, options.groups)
    return State(state_log, catalog, positions, Producers(state_log, options.kafka))


def open_state(log: MemoryLog, state: State | None = None, *, clean: bool = True) -> State:
    """Recover a state from the log and go on with it."""
    state = state or new_state()
    log.replay(state.state_log)
    state.state_log.attach(log)
    state.topics.attach(log, NOW, clean=clean)
    return state


def replayed(log: MemoryLog, since: int = 0, snapshot: list[bytes] | None = None) -> State:
    """What recovery gives: a snapshot, then the entries after it."""
    state = new_state()
    for payload in snapshot or ():
        state.state_log.replay_state(payload, EntrySlot(0, -1, NOW))
    log.replay(state.state_log, since)
    return state
