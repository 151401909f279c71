"""Parses JSON with the extensions of fastjson, in time linear in the length of the text.

    {a:1}  {'a':1}  {0:1}  {{"topic":"t"}:1}      keys without quotes, in single quotes, numbers, and objects
    'text'   /* comments */   // comments         commas may be repeated or missing

A key that is a number or an object becomes the text of its JSON. Objects and arrays in a key may not be nested. Numbers
with more than NUMBER_CHARACTERS_MAX characters are refused.
Source: `com.alibaba.fastjson2.JSONReader`, features that are on by default.
"""

import re
from typing import Any, Final

import msgspec

from duolog.protocol.errors import ProtocolError

NUMBER_CHARACTERS_MAX: Final = 40
KEY_CHARACTERS_MAX: Final = 1024
"""The longest key that is an object. Escaping quotes in nested keys would double the length with each level."""

DEPTH_MAX: Final = 64
"""The largest depth of nested values; RocketMQ's own bodies have up to 6 levels."""

_COLON: Final = object()
_CONSTANTS: Final = {"true": True, "false": False, "null": None}

# Repetitions are possessive or in an atomic group, so that no character is matched twice and an unterminated text fails
# in one pass. What precedes a token is an atomic group because Python 3.11.2, which Debian 12 has, does not go back to
# where a possessive group failed.
_TOKEN: Final = re.compile(
    r"""
    (?> (?: [\s,]++ | //[^\n]*+ | /\*[^*]*\*+(?:[^*/][^*]*\*+)*/ )* )
    (?: ([{}\[\]:])
      | "([^"\\]*+(?:\\.[^"\\]*+)*+)"
      | '([^'\\]*+(?:\\.[^'\\]*+)*+)'
      | ([^\s,{}\[\]:"'/]++)
      | \Z )
    """,
    re.DOTALL | re.VERBOSE,
)
_NUMBER: Final = re.compile(r"[+-]?(?:(\d++)|\d++\.\d*+(?:[eE][+-]?\d++)?|\d++[eE][+-]?\d++)")
_ESCAPED_OR_QUOTE: Final = re.compile(r'\\.|"', re.DOTALL)
_CLOSES: Final = {"}": "{", "]": "["}


def parse(text: str) -> Any:
    """Parse one value. Raises ProtocolError with the position of the error."""
    opened: list[tuple[str, list[Any]]] = []  # Each open bracket with the parts of the value that contains it.
    parts: list[Any] = []
    at = 0
    match_at = _TOKEN.match
    while match := match_at(text, at):
        at = match.end()
        kind = match.lastindex
        token = match[kind] if kind is not None else ""
        if kind is None:
            break
        if kind == 2:
            parts.append(_unescaped(token) if "\\" in token else token)
        elif kind == 4:
            parts.append(_word(token))
        elif kind == 3:
            parts.append(_unescaped(_ESCAPED_OR_QUOTE.sub(_requoted, token)))
        elif token == ":":
            parts.append(_COLON)
        elif token in "{[":
            if len(opened) == DEPTH_MAX:
                raise ProtocolError(f"JSON: character {at}: more than {DEPTH_MAX} values within each other")
            opened.append((token, parts))
            parts = []
        else:
            if not opened or opened[-1][0] != _CLOSES[token]:
                raise ProtocolError(f"JSON: character {at}: {token} closes nothing")
            value = _object(parts) if token == "}" else _array(parts)
            _, parts = opened.pop()
            parts.append(value)
    else:
        raise ProtocolError(f"JSON: character {at + 1}: here begins no token, or a text without end")
    if opened or len(parts) != 1 or parts[0] is _COLON:
        raise ProtocolError(f"JSON: {len(opened)} brackets are not closed, {len(parts)} values at the end")
    return parts[0]


def _object(parts: list[Any]) -> dict[str, Any]:
    if not parts:
        return {}
    keys, colons, values = parts[::3], parts[1::3], parts[2::3]
    if len(parts) % 3 or any(colon is not _COLON for colon in colons):
        raise ProtocolError(f"JSON: an object of {len(parts)} parts that are not keys, colons and values")
    if any(part is _COLON for part in keys) or any(part is _COLON for part in values):
        raise ProtocolError("JSON: an object with a colon too many")
    return {key if type(key) is str else _key(key): value for key, value in zip(keys, values, strict=True)}


def _array(parts: list[Any]) -> list[Any]:
    if any(part is _COLON for part in parts):
        raise ProtocolError("JSON: a colon in an array")
    return parts


def _key(key: Any) -> str:
    members = key.values() if isinstance(key, dict) else key if isinstance(key, list) else ()
    if any(isinstance(member, dict | list) for member in members):
        raise ProtocolError("JSON: a key with something nested in it")
    text = msgspec.json.encode(key).decode()
    if len(text) > KEY_CHARACTERS_MAX:
        raise ProtocolError(f"JSON: a key of {len(text)} characters; {KEY_CHARACTERS_MAX} are allowed")
    return text


def _word(word: str) -> Any:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    number = _NUMBER.fullmatch(word)
    if number is None:
        return word
    if len(word) > NUMBER_CHARACTERS_MAX:
        raise ProtocolError(f"JSON: a number of {len(word)} characters; {NUMBER_CHARACTERS_MAX} are allowed")
    return int(word) if number[1] else float(word)


def _requoted(match: re.Match[str]) -> str:
    """Convert an escape or a quote within single quotes to its form within double quotes."""
    return {'"': '\\"', "\\'": "'"}.get(match[0], match[0])


def _unescaped(escaped: str) -> str:
    try:
        return msgspec.json.decode(f'"{escaped}"', type=str)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ProtocolError(f"JSON: text {escaped[:40]!r}: {error}") from None
