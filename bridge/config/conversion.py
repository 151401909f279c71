"""Names and values of single settings: converts a value to the setting's type, and says what is wrong with it.

from_file("retention.ms", "7d")         604800000
from_text("topics.queues", "8")         8: a text of the command line or environment
from_file("kafka.port", "9092")         raises ConfigError: kafka.port: expected a whole number, got '9092'
"""

from difflib import get_close_matches
from typing import Any, Final, get_args

import msgspec

from duolog.bridge.config.options import SECTIONS, field_types, settings
from duolog.bridge.config.section import ConfigError
from duolog.bridge.config.units import expected_of, without_unit

SIMILARITY: Final = 0.8  # Names with a lower ratio of `difflib` to an unknown name are not suggested.


def from_file(key: str, value: Any) -> Any:
    """Convert a value of the config file, which has a type; numbers may be texts with a unit. Raises ConfigError."""
    field_type = _type_of(key)
    given = value
    if isinstance(value, str) and get_args(field_type)[:1] == (int,):
        number = without_unit(key, value)
        given = int(number) if number != value else value
    try:
        return msgspec.convert(given, field_type)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{key}: {_problem(key, str(error), field_type)}, got {given!r}") from error


def from_text(key: str, text: str) -> Any:
    """Convert a text to the type of the setting: "10" to a number, "true" to a boolean. Raises ConfigError."""
    field_type = _type_of(key)
    try:
        return msgspec.convert(without_unit(key, text), field_type, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{key}: {_problem(key, str(error), field_type)}, got {text!r}") from error


def check_name(key: str) -> None:
    """Raise ConfigError if there is no such setting; the message suggests similar names."""
    section, _, name = key.partition(".")
    if section not in SECTIONS or name not in field_types(section):
        raise ConfigError(f"{key}: {_unknown(key)}")


def _type_of(key: str) -> Any:
    check_name(key)
    section, _, name = key.partition(".")
    return field_types(section)[name]


def _unknown(key: str) -> str:
    """Return an error text for an unknown setting, with settings of a similar name."""
    names = [row.name for row in settings()]
    last = key.rpartition(".")[2]
    same = [name for name in names if name.partition(".")[2] == last or name.replace(".", "_") == last]
    near = (
        same
        or get_close_matches(key, [*names, *SECTIONS], 3, SIMILARITY)
        or get_close_matches(key, _lasts(names), 1, SIMILARITY)
        or [name for name in names if last in name.partition(".")[2].split("_")]
    )
    meant = [name for name in near if name in names]
    meant = (
        meant or [name for name in names if name.partition(".")[2] in near] or [name for name in near if name != key]
    )
    nearest = get_close_matches(key, meant, 3, 0)  # In the order of their similarity.
    hint = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    return f"no such setting; {hint}`duolog settings` lists them"


def _lasts(names: list[str]) -> list[str]:
    return [name.partition(".")[2] for name in names]


# Of msgspec's texts.
_KINDS: Final = {"`int`": "a whole number", "`float`": "a number", "`str`": "a text in quotes"}


def _problem(key: str, problem: str, field_type: Any) -> str:
    if get_args(field_type)[:1] == (bool,):
        return "expected true or false"
    choices = get_args(get_args(field_type)[0])
    if choices:
        return f"expected one of {', '.join(choices)}"
    expected = problem.partition(", got")[0]
    unit = expected_of(key) if "`int`" in expected and "=" not in expected else ""
    for name, words in _KINDS.items():
        expected = expected.replace(name, words)
    return expected[:1].lower() + expected[1:] + (f" or {unit}" if unit else "")
