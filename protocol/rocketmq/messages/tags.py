"""Tags: a message has at most one, consumers subscribe by tags, and index rows contain the hash of the tag.

A subscription is `*` or `tagA || tagB`. The broker compares hashes first, then the tags; Java and Go clients compare
the tags again. With a wrong hash, consumers would not receive the message, and no error would be reported. Source:
`FilterAPI.java`, `ExpressionMessageFilter.java`, `String.java#hashCode`.
"""

from typing import Final

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.messages import properties

ALL: Final = "*"
NO_TAG: Final = 0
"""The tag hash of a message without a tag."""

EXPRESSION_CHARACTERS_MAX: Final = 4096
"""The longest subscription. Apache RocketMQ limits only the frame; hashing so many tags would take seconds."""

# Hashes of tags are cached, because producers use few different tags. Longer tags are not cached, and a full cache is
# cleared.
_CACHED_TAGS_MAX: Final = 4096
_CACHED_TAG_CHARACTERS_MAX: Final = 64
_codes: dict[str, int] = {}


class IllegalExpression(ProtocolError):
    """A subscription that cannot be parsed: response code SUBSCRIPTION_PARSE_FAILED."""


def code_of_properties(raw: bytes, text: str) -> int:
    """Return the hash of the tag in a message's properties; `text` is the same as `raw`.

    The search in text takes a quarter of the time that it takes in bytes.
    """
    tag = properties.get(raw, properties.TAGS) if properties.TAGS in text else None
    return hash_code(tag) if tag else NO_TAG


def hash_code(text: str) -> int:
    """Return the value of Java's `String.hashCode`: a signed 32-bit hash over UTF-16 code units."""
    code = _codes.get(text)
    if code is None:
        code = _hash(text.encode("ascii") if text.isascii() else _utf16_units(text))
        if len(text) <= _CACHED_TAG_CHARACTERS_MAX:
            if len(_codes) >= _CACHED_TAGS_MAX:
                _codes.clear()
            _codes[text] = code
    return code


def parse_expression(expression: str | None) -> frozenset[str]:
    """Return the tags that a subscription names; none of them means all messages. Raises IllegalExpression."""
    if not expression or expression == ALL:
        return frozenset()
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise IllegalExpression(
            f"subscription of {len(expression)} characters; {EXPRESSION_CHARACTERS_MAX} are allowed"
        )
    tags = [tag for tag in expression.split("||") if tag]
    if not tags:
        raise IllegalExpression(f"subscription {expression[:80]!r} names no tag")
    return frozenset(tag.strip() for tag in tags) - {""}


def codes_of(tags: frozenset[str]) -> frozenset[int]:
    """Return the hash of each tag, for which the index is searched."""
    return frozenset(map(hash_code, tags))


def _hash(units: "bytes | memoryview[int]") -> int:
    code = 0
    for unit in units:
        code = (code * 31 + unit) & 0xFFFFFFFF
    return code - (code >> 31 << 32)


def _utf16_units(text: str) -> "memoryview[int]":
    return memoryview(text.encode("utf-16", "surrogatepass")[2:]).cast("H")
