"""Locks of orderly consumers: one client at a time consumes a queue in order.

    owner                     lock by the owner   lock by another          unlock
    nobody, or expired        taken               taken                    nothing
    a client, not expired     refreshed           left with its owner      freed, if by the owner

A lock lives LOCK_MS from its last refresh; clients refresh every 20 s and stop consuming CLIENT_LOCK_MS after the last
success that they heard of. So when a client's connection is gone, its locks need not live longer than that: whether it
died or only the network failed, it no longer consumes then; one that says goodbye has stopped already. Locks are not
kept over a restart: then every consumer locks anew before it consumes. Queues are named by their keys.
Source: RebalanceLockManager.java, ProcessQueue.java.
"""

from collections.abc import Iterable

LOCK_MS = 60_000  # `rocketmq.broker.rebalance.lockMaxLiveTime`
CLIENT_LOCK_MS = 30_000  # `rocketmq.client.rebalance.lockMaxLiveTime`
LOCKS_MAX = 100_000  # Queues of all groups together; further ones are not locked, so that their clients ask again.
NAME_CHARACTERS_MAX = 255  # Of a group and a client id, which are kept; for longer ones nothing is locked.


class Locks:
    """Who holds which queue of which group; times are monotonic."""

    def __init__(self, locks_max: int = LOCKS_MAX) -> None:
        self._locks_max = locks_max
        self._count = 0  # Invariant: the sum of the lengths of the tables.
        self._tables: dict[str, dict[int, tuple[str, int]]] = {}  # group: queue key: (client id, until)

    def __len__(self) -> int:
        return self._count

    def lock(self, group: str, client_id: str, keys: Iterable[int], mono_ms: int) -> list[int]:
        """Take or refresh those queues that nobody else holds, and name them."""
        if max(len(group), len(client_id)) > NAME_CHARACTERS_MAX:
            return []
        return [key for key in keys if self._lock(group, client_id, key, mono_ms)]

    def unlock(self, group: str, client_id: str, keys: Iterable[int]) -> None:
        """Free those of the queues that this client holds."""
        table = self._tables.get(group, {})
        for key in keys:
            if key in table and table[key][0] == client_id:
                del table[key]
                self._count -= 1
        if not table:
            self._tables.pop(group, None)

    def is_any_held(self, group: str, mono_ms: int) -> bool:
        """Say whether the group consumes in order now: then its failed messages go to its dead letters."""
        return any(until > mono_ms for _, until in self._tables.get(group, {}).values())

    def unlock_all(self, group: str, client_id: str) -> None:
        """Free what a client holds that has stopped consuming, and says so."""
        self.unlock(group, client_id, list(self._tables.get(group, {})))

    def left(self, group: str, client_id: str, mono_ms: int) -> None:
        """Let a client's locks end as soon as it must have stopped consuming; it has no connection any more."""
        table = self._tables.get(group, {})
        for key, (owner, until) in table.items():
            if owner == client_id:
                table[key] = owner, min(until, mono_ms + CLIENT_LOCK_MS)

    def advance(self, mono_ms: int) -> list[str]:
        """Forget expired locks, and name their groups: somebody else may take these queues now."""
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
