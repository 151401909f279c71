"""The quotas that are set, kept in the log as state records. Only replay changes the table."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from duolog.bridge.config import SecurityOptions
from duolog.bridge.records.security import QuotasSet
from duolog.bridge.security.quotas.entity import Entity, check, check_key
from duolog.store.entry import EntrySlot, Promise
from duolog.store.state_log import StateLog


class TooManyQuotas(Exception):
    """`security.quotas_max` is reached."""


class StoredQuotas:
    """The quotas of all entities. `on_changed` is called after each change."""

    def __init__(self, state_log: StateLog, options: SecurityOptions) -> None:
        self._state_log, self._count_max = state_log, options.quotas_max
        self._limits: dict[Entity, Mapping[str, float]] = {}
        self.on_changed: Callable[[], None] = lambda: None
        self.get = self._limits.get
        state_log.own(QuotasSet, self._replay)
        state_log.on_snapshot(self._snapshot)

    def __len__(self) -> int:
        return len(self._limits)

    def all(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        """Yield all entities with their quotas, in order."""
        yield from sorted(self._limits.items(), key=lambda item: str(item[0]))

    def changed(self, entity: Entity, changes: Mapping[str, float | None]) -> dict[str, float]:
        """Return the quotas of an entity after changes, of which None removes a key. Raises BadQuota, TooManyQuotas."""
        limits = dict(self._limits.get(entity, {}))
        for key, value in changes.items():
            if value is None:
                check_key(key)
                limits.pop(key, None)
            else:
                check(entity, key, value)
                limits[key] = value
        if limits and entity not in self._limits and len(self._limits) >= self._count_max:
            raise TooManyQuotas(f"{len(self._limits)} entities have quotas; security.quotas_max is {self._count_max}")
        return limits

    def set(self, entity: Entity, limits: Mapping[str, float], now_ms: int) -> Promise | None:
        """Replace the quotas of an entity by what `changed` returned; None: they are so already. Raises StoreError."""
        if limits == self._limits.get(entity, {}):
            return None
        return self._state_log.commit([QuotasSet(entity.user, entity.client_id, limits)], now_ms).promise

    def _replay(self, record: QuotasSet, slot: EntrySlot) -> None:
        entity = Entity(record.user, record.client_id)
        if record.limits:
            self._limits[entity] = dict(record.limits)
        else:
            self._limits.pop(entity, None)
        self.on_changed()

    def _snapshot(self) -> Iterable[QuotasSet]:
        return [QuotasSet(user, client_id, limits) for (user, client_id), limits in self._limits.items()]
