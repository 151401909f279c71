"""Whether the members of a group pull or pop a topic, as a tool has set it (SET_MESSAGE_REQUEST_MODE): replayed state.

A group and topic without a record are pulled. `assignment.py` serves the requests.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import RequestModeSet
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.store.entry import EntrySlot, Promise
from duolog.store.state_log import StateLog

PULL: Final = "PULL"
POP: Final = "POP"
MODES_MAX: Final = 100_000


class RequestMode(NamedTuple):
    name: str = PULL
    shared_queues: int = 0


class RequestModes:
    """The modes that were set, by group and topic."""

    def __init__(self, state_log: StateLog) -> None:
        self._state_log = state_log
        self._modes: dict[tuple[str, str], RequestMode] = {}
        state_log.own(RequestModeSet, self._replay)
        state_log.on_sliced_snapshot(self._snapshot)

    def of(self, group: str, topic: str) -> RequestMode:
        return self._modes.get((group, topic), RequestMode())

    def set(self, group: str, topic: str, mode: RequestMode, now_ms: int) -> Promise:
        """Raises what `check_room` does, and StoreError."""
        self.check_room(group, topic)
        return self._state_log.commit([RequestModeSet(group, topic, *mode)], now_ms).promise

    def check_room(self, group: str, topic: str) -> None:
        """Raise RequestRefused if MODES_MAX are set."""
        if (group, topic) not in self._modes and len(self._modes) >= MODES_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"{len(self._modes)} request modes; {MODES_MAX} are allowed"
            )

    def _replay(self, record: RequestModeSet, slot: EntrySlot) -> None:
        self._modes[record.group, record.topic] = RequestMode(record.mode, record.shared_queues)

    def _snapshot(self) -> Iterable[Record]:
        table = zip([*self._modes], [*self._modes.values()], strict=True)
        return (RequestModeSet(*name, *mode) for name, mode in table)
