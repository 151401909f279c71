"""Keys and values that RocketMQ's tools store at the name server, by namespace; they are state in the log.

The name server itself reads only one namespace, which has the order of a topic's queues. Source: KVConfigManager.java.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from duolog.bridge.records.broker import KeyValueKept
from duolog.store.entry import EntrySlot, Promise
from duolog.store.state_log import StateLog

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
ENTRIES_MAX: Final = 10_000
TEXT_MAX: Final = 16 << 20  # The number of characters of all namespaces, keys and values.
CHARACTERS_MAX: Final = 4096  # The length of a namespace, key or value.


class TooManyValues(Exception):
    """ENTRIES_MAX, TEXT_MAX or CHARACTERS_MAX is exceeded; the message says which."""


class KeyValues:
    """The table of keys and values."""

    def __init__(self, state_log: StateLog) -> None:
        self._state_log = state_log
        self._values: dict[str, dict[str, str]] = {}  # By namespace and key.
        self._text = 0  # Invariant: the number of characters of all entries; the namespace counts for each entry.
        state_log.own(KeyValueKept, self._replay)
        state_log.on_snapshot(self._snapshot)

    def all_of(self, namespace: str) -> Mapping[str, str]:
        """Return the values of a namespace by key."""
        return self._values.get(namespace, {})

    def put(self, namespace: str, key: str, value: str, now_ms: int) -> Promise:
        """Store a value. Raises TooManyValues and StoreError."""
        longest = max(map(len, (namespace, key, value)))
        if longest > CHARACTERS_MAX:
            raise TooManyValues(f"{longest} characters; {CHARACTERS_MAX} are allowed")
        is_new = key not in self.all_of(namespace)
        if is_new and sum(map(len, self._values.values())) >= ENTRIES_MAX:
            raise TooManyValues(f"{ENTRIES_MAX} values are kept; more are not")
        record = KeyValueKept(namespace, key, value)
        added = _size(record, value) - _size(record, self.all_of(namespace).get(key))
        if added > 0 and self._text + added > TEXT_MAX:
            raise TooManyValues(f"values of {self._text} characters are kept; {TEXT_MAX} are allowed")
        return self._state_log.commit([record], now_ms).promise

    def delete(self, namespace: str, key: str, now_ms: int) -> Promise:
        """Delete a value. Raises StoreError."""
        return self._state_log.commit([KeyValueKept(namespace, key, None)], now_ms).promise

    # -- Replay

    def _replay(self, record: KeyValueKept, slot: EntrySlot) -> None:
        values = self._values.setdefault(record.namespace, {})
        before = values.get(record.key)
        self._text += _size(record, record.value) - _size(record, before)
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if not values:
            del self._values[record.namespace]

    def _snapshot(self) -> Iterable[KeyValueKept]:
        for namespace, values in self._values.items():
            for key, value in values.items():
                yield KeyValueKept(namespace, key, value)


def _size(record: KeyValueKept, value: str | None) -> int:
    return 0 if value is None else len(record.namespace) + len(record.key) + len(value)
