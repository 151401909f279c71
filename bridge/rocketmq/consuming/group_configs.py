"""The configs of RocketMQ's subscription groups: replayed state. A group's first request creates its config.

A group is known by its RocketMQ name. `brokerId` and `whichBrokerWhenConsumeSlowly` are stored as tools set them and
have no effect, because there is one broker. Source: SubscriptionGroupManager.java.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import GroupConfigured, GroupDeleted
from duolog.protocol.names import group_of_rocketmq, is_rocketmq_group, rocketmq_group
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.names import SYSTEM_GROUPS
from duolog.store.entry import EntrySlot, Promise
from duolog.store.errors import StoreError
from duolog.store.state_log import StateLog


class TooManyGroups(Exception):
    """`groups.count_max` groups are configured, or `rocketmq.group_config_bytes_max` bytes of configs are kept."""


class GroupConfigs:
    """The configs by group. System groups have a config without a record."""

    def __init__(self, state_log: StateLog, count_max: int, bytes_max: int) -> None:
        self._state_log, self._count_max, self._bytes_max = state_log, count_max, bytes_max
        self._sizes: dict[str, int] = {}  # The size in bytes of each config that has a record.
        self._bytes = 0  # Invariant: the sum of `_sizes`.
        self._configs: dict[str, SubscriptionGroupConfig] = {}
        self._settings: dict[str, Mapping[str, Any]] = {}  # The settings of each group that has a record.
        self._names: dict[str, str] = {}  # The names of the same groups, by their Kafka spelling.
        self.version = 0  # Increases with every change.
        self.get = self._configs.get
        for name in sorted(SYSTEM_GROUPS):
            self._configs[name] = SubscriptionGroupConfig(group_name=name)
        state_log.own(GroupConfigured, self._replay_configured)
        state_log.own(GroupDeleted, self._replay_deleted)
        state_log.on_sliced_snapshot(self._snapshot)

    def all(self) -> Collection[SubscriptionGroupConfig]:
        return self._configs.values()

    def ensure(self, group: str, now_ms: int) -> SubscriptionGroupConfig | None:
        """Return the config of a group, and create it if there is none; None for a name that no group may have.

        Raises TooManyGroups and StoreError. A request is checked with `find` before, so that a refusal has no effect.
        """
        if group not in self._configs:
            self.ensure_all((group,), now_ms)
        return self._configs.get(group)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the config of a group, or the one that `ensure` would create; None if no group may have the name."""
        config = self._configs.get(group)
        return SubscriptionGroupConfig(group_name=group) if config is None and is_rocketmq_group(group) else config

    def name_of(self, group: str) -> str:
        """Return the RocketMQ name of a group by its Kafka spelling, which may be a hash of the name."""
        return self._names.get(group) or rocketmq_group(group)

    def ensure_all(self, groups: Iterable[str], now_ms: int) -> None:
        """Create the configs of those groups that have none, all or none; raises TooManyGroups and StoreError."""
        new = [group for group in dict.fromkeys(groups) if group not in self._configs and is_rocketmq_group(group)]
        if not new:
            return
        if len(self._configs) + len(new) > self._count_max:
            raise TooManyGroups(f"{len(self._configs)} groups and {len(new)} more; groups.count_max={self._count_max}")
        self._check_bytes(len(new) * _DEFAULT_BYTES)
        self._state_log.commit(
            [GroupConfigured(group, _settings_of(SubscriptionGroupConfig(group_name=group))) for group in new], now_ms
        )

    def ensure_if_writable(self, groups: Iterable[str], now_ms: int) -> None:
        """Create missing configs as `ensure_all` does; if the log refuses the append, the groups use the defaults.

        Raises TooManyGroups.
        """
        with suppress(StoreError):
            self.ensure_all(groups, now_ms)

    def configure(self, config: SubscriptionGroupConfig, now_ms: int) -> Promise:
        """Set the whole config of one group; raises TooManyGroups and StoreError."""
        if config.group_name not in self._configs and len(self._configs) >= self._count_max:
            raise TooManyGroups(f"{len(self._configs)} groups; groups.count_max is {self._count_max}")
        settings = _settings_of(config)
        self._check_bytes(_size_of(settings) - self._sizes.get(config.group_name, 0))
        return self._state_log.commit([GroupConfigured(config.group_name, settings)], now_ms).promise

    def _check_bytes(self, added: int) -> None:
        if added > 0 and self._bytes + added > self._bytes_max:
            raise TooManyGroups(
                f"configs of {self._bytes} bytes, and {added} more; rocketmq.group_config_bytes_max={self._bytes_max}"
            )

    # -- Replay

    def _replay_configured(self, record: GroupConfigured, slot: EntrySlot) -> None:
        name = record.group
        self._settings[name] = record.settings
        size = _size_of(record.settings)
        self._bytes += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        self._names[group_of_rocketmq(name)] = name
        self._configs[name] = msgspec.convert({**record.settings, "groupName": name}, SubscriptionGroupConfig)
        self.version += 1

    def _replay_deleted(self, record: GroupDeleted, slot: EntrySlot) -> None:
        """Remove the config of a group that was deleted or has expired; the record has its Kafka spelling."""
        name = self._names.pop(record.group, None)
        if name is not None:
            del self._settings[name], self._configs[name]
            self._bytes -= self._sizes.pop(name)
            self.version += 1

    def _snapshot(self) -> Iterable[Record]:
        return map(GroupConfigured, [*self._settings], [*self._settings.values()])


def _settings_of(config: SubscriptionGroupConfig) -> dict[str, Any]:
    settings: dict[str, Any] = msgspec.to_builtins(config)
    del settings["groupName"]
    return settings


def _size_of(settings: Mapping[str, Any]) -> int:
    return len(msgspec.json.encode(settings))


_DEFAULT_BYTES = _size_of(_settings_of(SubscriptionGroupConfig(group_name="")))
