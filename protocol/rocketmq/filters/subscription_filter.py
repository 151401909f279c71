"""The filter of a subscription: by tags, or by a condition in SQL92. Compiled filters are cached.

    filter_of("TAG", "paid || sent")    a TagFilter: compares the tag hash of the index row, then the tag itself
    filter_of("SQL92", "price > 10")    a SqlFilter: evaluates the condition for the properties of each message
    filter_of("TAG", "*")               None: the consumer receives all messages

Source: `FilterAPI.java`, `ExpressionMessageFilter.java`.
"""

from collections import OrderedDict
from typing import Final

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.filters.sql92 import compile_condition
from duolog.protocol.rocketmq.messages import properties, tags

TAG: Final = "TAG"
SQL92: Final = "SQL92"

# The length of all expressions in the cache. A compiled condition takes about thirty times its length in memory.
COMPILED_CHARACTERS_MAX: Final = 1 << 20


class UnknownFilter(ProtocolError):
    """A subscription of a type that is neither TAG nor SQL92: response code SYSTEM_ERROR, as Java's broker answers."""

    def __init__(self, expression_type: str) -> None:
        super().__init__(f"The broker does not support consumer to filter message by {expression_type[:80]}")


class TagFilter:
    """Matches messages with one of these tags. `codes` has the hashes of the tags; no other message can match."""

    __slots__ = ("_tags", "characters", "codes")

    def __init__(self, wanted: frozenset[str]) -> None:
        self._tags = wanted
        self.codes = tags.codes_of(wanted)
        self.characters = sum(map(len, wanted)) + 2 * len(wanted)

    def wants(self, raw: bytes) -> bool:
        """Return whether a message with these properties matches. Different tags may have the same hash."""
        try:
            return properties.get(raw, properties.TAGS) in self._tags
        except ProtocolError:
            return False  # The properties are not UTF-8, so no subscription can name the tag.


class SqlFilter:
    """Matches messages for which a condition is true. `codes` is empty, because tag hashes are not used."""

    __slots__ = ("characters", "codes", "wants")

    def __init__(self, expression: str) -> None:
        self.codes: frozenset[int] = frozenset()
        self.characters = len(expression)
        self.wants = compile_condition(expression)


Filter = TagFilter | SqlFilter


def filter_of(expression_type: str | None, expression: str | None) -> Filter | None:
    """Return the filter of a subscription, from the cache or compiled; None if all messages match.

    Raises IllegalExpression and UnknownFilter.
    """
    if (not expression or expression == tags.ALL) and (expression_type or TAG) == TAG:
        return None
    key = (expression_type or TAG, expression or "")
    if key in _compiled:
        _compiled.move_to_end(key)
    else:
        _compiled.remember(key, _compile(*key))
    return _compiled[key]


def _compile(expression_type: str, expression: str) -> Filter | None:
    if expression_type == TAG:
        wanted = tags.parse_expression(expression)
        return TagFilter(wanted) if wanted else None
    if expression_type == SQL92:
        return SqlFilter(expression)
    raise UnknownFilter(expression_type)


class _Compiled(OrderedDict[tuple[str, str], Filter | None]):
    """The cache of compiled filters, the least recently used one first."""

    characters = 0  # Invariant: the length of all expressions in the cache.

    def remember(self, key: tuple[str, str], compiled: Filter | None) -> None:
        self[key] = compiled
        self.characters += len(key[1])
        while self.characters > COMPILED_CHARACTERS_MAX:
            (_, oldest), _ = self.popitem(last=False)
            self.characters -= len(oldest)


_compiled = _Compiled()
