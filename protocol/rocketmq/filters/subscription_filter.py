"""What a subscription wants of the messages of a topic: tags, or a condition in SQL92. Compiled once, whoever asks.

    filter_of("TAG", "paid || sent")    a TagFilter: by hash on the index, then by the word itself
    filter_of("SQL92", "price > 10")    a SqlFilter: the index knows nothing of it
    filter_of("TAG", "*")               None: all messages

Source: `FilterAPI.java`, `ExpressionMessageFilter.java`.
"""

from collections import OrderedDict
from typing import Final

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.filters.sql92 import compile_condition
from duolog.protocol.rocketmq.messages import properties, tags

TAG: Final = "TAG"
SQL92: Final = "SQL92"

# Of the expressions that are kept compiled, all together. A condition takes some thirty times its length.
COMPILED_CHARACTERS_MAX: Final = 1 << 20


class UnknownFilter(ProtocolError):
    """A subscription of a type that is neither TAG nor SQL92: response code SYSTEM_ERROR, as Java's broker answers."""

    def __init__(self, expression_type: str) -> None:
        super().__init__(f"The broker does not support consumer to filter message by {expression_type[:80]}")


class TagFilter:
    """Wants the messages with one of these tags. A message whose tag's hash is not among `codes` is none of them."""

    __slots__ = ("_tags", "characters", "codes")

    def __init__(self, wanted: frozenset[str]) -> None:
        self._tags = wanted
        self.codes = tags.codes_of(wanted)
        self.characters = sum(map(len, wanted)) + 2 * len(wanted)

    def wants(self, raw: bytes) -> bool:
        """Say whether the message with these properties is wanted; two tags may have one hash."""
        try:
            return properties.get(raw, properties.TAGS) in self._tags
        except ProtocolError:
            return False  # Not text, so no tag that anybody could name.


class SqlFilter:
    """Wants the messages for which a condition is true; `codes` is empty, for tags decide nothing."""

    __slots__ = ("characters", "codes", "wants")

    def __init__(self, expression: str) -> None:
        self.codes: frozenset[int] = frozenset()
        self.characters = len(expression)
        self.wants = compile_condition(expression)


Filter = TagFilter | SqlFilter


def filter_of(expression_type: str | None, expression: str | None) -> Filter | None:
    """Compile a subscription, or find it compiled. Raises IllegalExpression and UnknownFilter."""
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
    """What was compiled lately, the last used at the end."""

    characters = 0  # Invariant: the sum over its expressions.

    def remember(self, key: tuple[str, str], compiled: Filter | None) -> None:
        self[key] = compiled
        self.characters += len(key[1])
        while self.characters > COMPILED_CHARACTERS_MAX:
            (_, oldest), _ = self.popitem(last=False)
            self.characters -= len(oldest)


_compiled = _Compiled()
