"""The line of a TOML file in which a setting is given, for error texts: tomllib does not report it."""

import tomllib
from collections.abc import Sequence
from typing import Any


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """Return the line, from 1, that begins the value (or the table) of these nested keys; None if they are not found.

    Of the prefixes of whole lines that are valid TOML, the shortest one with the keys ends with the value. A bisection
    finds it. A prefix that ends inside a value of several lines is not valid, and is passed over.
    """
    lines = text.split("\n")
    without, having = 0, len(lines)  # Numbers of lines: of a prefix without the keys, and of a longer one with them.
    if not _has(_parsed(lines), keys):
        return None
    while having - without > 1:
        middle = (without + having) // 2
        for count in (*range(middle, without, -1), *range(middle + 1, having)):
            document = _parsed(lines[:count])
            if document is not None:
                break
        else:
            break
        if _has(document, keys):
            having = count
        else:
            without = count
    return without + 1


def _parsed(lines: Sequence[str]) -> dict[str, Any] | None:
    try:
        return tomllib.loads("".join(f"{line}\n" for line in lines))
    except tomllib.TOMLDecodeError:
        return None


def _has(document: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True
