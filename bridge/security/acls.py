"""The stored access rules. Only replay of state records changes them; `Authorizer` decides with them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from duolog.bridge.config import SecurityOptions
from duolog.bridge.records.security import RulesAdded, RulesRemoved
from duolog.bridge.security.rules import ResourceType, Rule, RuleIndex, checked
from duolog.store.entry import EntrySlot, Promise
from duolog.store.state_log import StateLog

RULES_IN_RECORD: Final = 500


class TooManyRules(Exception):
    """`security.rules_max` is reached."""


class Acls:
    """All access rules. `on_changed` is called after each change."""

    def __init__(self, state_log: StateLog, options: SecurityOptions) -> None:
        self._state_log, self._count_max = state_log, options.rules_max
        self._rules: dict[Rule, None] = {}  # In the order in which they were added.
        self._indexes = {kind: RuleIndex() for kind in ResourceType}
        self.on_changed: Callable[[], None] = lambda: None
        state_log.own(RulesAdded, self._replay_added)
        state_log.own(RulesRemoved, self._replay_removed)
        state_log.on_sliced_snapshot(self._snapshot)

    def __len__(self) -> int:
        return len(self._rules)

    def __contains__(self, rule: Rule) -> bool:
        return rule in self._rules

    def all(self) -> Iterator[Rule]:
        """Yield all rules in the order in which they were added."""
        return iter(self._rules)

    def matching(self, resource_type: ResourceType, name: str) -> Iterator[Rule]:
        """Yield the rules that name a resource."""
        return self._indexes[resource_type].matching(name)

    def of_type(self, resource_type: ResourceType) -> Iterator[Rule]:
        """Yield the rules for a type of resource."""
        return self._indexes[resource_type].all()

    # -- Changing

    def add(self, rules: Sequence[Rule], now_ms: int) -> Promise | None:
        """Add rules; those that exist already stay. Raises BadRule, TooManyRules, StoreError.

        None: all of them exist already.
        """
        new = [checked(rule) for rule in dict.fromkeys(rules) if rule not in self._rules]
        if len(self._rules) + len(new) > self._count_max:
            raise TooManyRules(f"{len(self._rules)} rules and {len(new)} more; security.rules_max is {self._count_max}")
        if not new:
            return None
        return self._state_log.commit([RulesAdded([rule.stored for rule in new])], now_ms).promise

    def remove(self, rules: Sequence[Rule], now_ms: int) -> Promise | None:
        """Remove rules; None: none of them exists. Raises StoreError."""
        known = [rule for rule in dict.fromkeys(rules) if rule in self._rules]
        if not known:
            return None
        return self._state_log.commit([RulesRemoved([rule.stored for rule in known])], now_ms).promise

    # -- Replay

    def _replay_added(self, record: RulesAdded, slot: EntrySlot) -> None:
        for stored in record.rules:
            rule = Rule.of(stored)
            if rule not in self._rules:
                self._rules[rule] = None
                self._indexes[rule.resource_type].add(rule)
        self.on_changed()

    def _replay_removed(self, record: RulesRemoved, slot: EntrySlot) -> None:
        for stored in record.rules:
            rule = Rule.of(stored)
            if rule in self._rules:
                del self._rules[rule]
                self._indexes[rule.resource_type].remove(rule)
        self.on_changed()

    def _snapshot(self) -> Iterable[RulesAdded]:
        rules = iter([*self._rules])
        runs = iter(lambda: [*islice(rules, RULES_IN_RECORD)], [])
        return (RulesAdded([rule.stored for rule in run]) for run in runs)
