"""Locks of orderly consumers: one client at a time consumes a queue in order.

    state                     lock by the owner   lock by another client   unlock
    free, or expired          locked              locked                   nothing
    locked, not expired       refreshed           refused                  freed, if by the owner

A lock expires LOCK_MS after its last refresh. Clients refresh their locks every 20 s, and stop consuming CLIENT_LOCK_MS
after the last successful answer. So the locks of a client whose connection has closed expire after CLIENT_LOCK_MS:
whether the client ended or the network failed, it no longer consumes then. A client that unregisters has stopped
consuming before. A restart loses all locks, and each consumer locks its queues again before it consumes. Queues are
named by their keys.
Source: RebalanceLockManager.java, ProcessQueue.java.
"""

from collections.abc import Iterable

LOCK_MS = 60_000  # `rocketmq.broker.rebalance.lockMaxLiveTime`
CLIENT_LOCK_MS = 30_000  # `rocketmq.client.rebalance.lockMaxLiveTime`
LOCKS_MAX = 100_000  # Queues of all groups; further queues are not locked, and their clients ask again.
NAME_CHARACTERS_MAX = 255  # The length of a group name or client id; a request with a longer one locks no queue.


class Locks:
    """The locked queues of each group, and their owners. Times are monotonic milliseconds."""

    def __init__(self, locks_max: int = LOCKS_MAX) -> None:
        self._locks_max = locks_max
        self._count = 0  # Invariant: the sum of the lengths of the tables.
        self._tables: dict[str, dict[int, tuple[str, int]]] = {}  # group: queue key: (client id, until)

    def __len__(self) -> int:
        return self._count

    def lock(self, group: str, client_id: str, keys: Iterable[int], mono_ms: int) -> list[int]:
        """Lock or refresh the queues that no other client has locked, and return their keys."""
        if max(len(group), len(client_id)) > NAME_CHARACTERS_MAX:
            return []
        return [key for key in keys if self._lock(group, client_id, key, mono_ms)]

    def unlock(self, group: str, client_id: str, keys: Iterable[int]) -> None:
        """Free the queues that this client has locked."""
        table = self._tables.get(group, {})
        for key in keys:
            if key in table and table[key][0] == client_id:
                del table[key]
                self._count -= 1
        if not table:
            self._tables.pop(group, None)

    def is_any_held(self, group: str, mono_ms: int) -> bool:
        """Return whether the group consumes in order now, so that its failed messages become dead letters."""
        return any(until > mono_ms for _, until in self._tables.get(group, {}).values())

    def unlock_all(self, group: str, client_id: str) -> None:
        """Free all queues that a client has locked, because it has unregistered."""
        self.unlock(group, client_id, list(self._tables.get(group, {})))

    def left(self, group: str, client_id: str, mono_ms: int) -> None:
        """Let the locks of a client without a connection expire when it must have stopped consuming."""
        table = self._tables.get(group, {})
        for key, (owner, until) in table.items():
            if owner == client_id:
                table[key] = owner, min(until, mono_ms + CLIENT_LOCK_MS)

    def advance(self, mono_ms: int) -> list[str]:
        """Free expired locks, and return their groups, in which other members may lock these queues now."""
        freed = []
        for group in list(self._tables):
            live = {key: held for key, held in self._tables[group].items() if held[1] > mono_ms}
            if len(live) < len(self._tables[group]):
                freed.append(group)
                self._count -= len(self._tables[group]) - len(live)
            if live:
                self._tables[group] = live
            else:
                del self._tables[group]
        return freed

    def _lock(self, group: str, client_id: str, key: int, mono_ms: int) -> bool:
        table = self._tables.setdefault(group, {})
        held = table.get(key)
        if held is None:
            if self._count >= self._locks_max:
                return False
            self._count += 1
        elif held[0] != client_id and held[1] > mono_ms:
            return False
        table[key] = (client_id, mono_ms + LOCK_MS)
        return True
