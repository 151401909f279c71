"""The fields of a form that a page sends: texts, which become the values that the API expects.

A field that is missing or blank has no value. Raises FormError with the label of the field, what was expected, and what
it has.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from duolog.bridge.config import units

TRUE: Final = frozenset({"true", "on", "1"})
SHOWN_CHARACTERS: Final = 80
# The beginning of an error of the API that names fields: `queue: ...`, `zone goes with cron`.
NAMING: Final = re.compile(r"\w+(?=: )|expected (?:either|one of) [\w, ]+|\w+ goes with \w+")
NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class FormError(Exception):
    """A field has no usable value."""

    status = 400


class Form:
    """The fields of one form, which was sent at `now_ms`. Errors name a field by its label, if it has one."""

    def __init__(self, fields: Mapping[str, str], now_ms: int, labels: Mapping[str, str] = NO_LABELS) -> None:
        self._fields, self.now_ms, self._labels = fields, now_ms, labels

    def text(self, name: str) -> str:
        """Return the text of a field that must have one."""
        found = self.optional(name)
        if found is None:
            raise FormError(f"{self._shown(name)}: missing")
        return found

    def optional(self, name: str) -> str | None:
        found = self._fields.get(name, "").strip()
        return found or None

    def raw(self, name: str) -> str | None:
        """Return a text as it is, with its blanks; None if it is missing or empty."""
        return self._fields.get(name) or None

    def flag(self, name: str) -> bool:
        return self._fields.get(name, "").strip().lower() in TRUE

    def number(self, name: str) -> int | None:
        found = self.optional(name)
        if found is None:
            return None
        if not _is_number(found):
            raise self._error(name, "a number", found)
        return int(found)

    def length_ms(self, name: str) -> int | None:
        """Return a length of time with a unit, such as `90s`, in milliseconds."""
        found = self.optional(name)
        if found is None:
            return None
        length_ms = units.length_ms(found)
        if length_ms is None:
            raise self._error(name, units.MS_EXPECTED, found)
        return length_ms

    def moment_ms(self, name: str) -> int | None:
        """Return a moment, `2030-01-31T08:00` in UTC or with an offset, in wall milliseconds."""
        found = self.optional(name)
        if found is None:
            return None
        if _is_number(found):
            return int(found)
        try:
            moment = datetime.fromisoformat(found)
            return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError) as error:
            raise self._error(name, "a moment like 2030-01-31T08:00", found) from error

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of a field that may be sent repeatedly."""
        found = self.lines(name)
        for line in found:
            if not _is_number(line):
                raise self._error(name, "numbers", line)
        return [int(line) for line in found]

    def lines(self, name: str) -> list[str]:
        """Return the lines of a field that are not blank."""
        return [line.strip() for line in self._fields.get(name, "").splitlines() if line.strip()]

    def pairs(self, name: str) -> dict[str, str]:
        """Return lines of `NAME=VALUE`."""
        found = [line.partition("=") for line in self.lines(name)]
        for key, equals, _ in found:
            if not equals or not key.strip():
                raise self._error(name, "lines of NAME=VALUE", key)
        return {key.strip(): value.strip() for key, _, value in found}

    def labelled(self, error: str) -> str:
        """Return an error of the API with the labels of the fields that it names, as it names them: `at_ms` for `at`.

        A word with `_ms` is always a name, another one only in the beginning; text after a quote is a value.
        """
        beginning = NAMING.match(error)
        end = beginning.end() if beginning else 0
        said, quote, values = error.partition("'")

        def shown(word: re.Match[str]) -> str:
            name = word[0].removesuffix("_ms")
            is_field = name in self._labels and (word.end() <= end or name != word[0])
            return self._shown(name) if is_field else word[0]

        return re.sub(r"\w+", shown, said) + quote + values

    def _error(self, name: str, expected: str, got: str) -> FormError:
        return FormError(f"{self._shown(name)}: expected {expected}, got {got[:SHOWN_CHARACTERS]!r}")

    def _shown(self, name: str) -> str:
        return f'"{self._labels[name]}"' if name in self._labels else name


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def given(**values: Any) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def moment(ms: int) -> str:
    """Return a time as commands and forms take it: ISO 8601 in UTC; the milliseconds if the year is above 9999."""
    try:
        found = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return found.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace("+00:00", "Z")
