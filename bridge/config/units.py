"""Sizes and lengths of time with units, in settings, command-line options and topic configs: `256MB`, `7d`.

    length of time   ms, s, m, h, d, w
    size             B, kB, MB, GB, TB (or KiB, ...): multiples of 1,024

The units are those of PostgreSQL's settings, in upper or lower case; a blank may stand before them. The name of a
setting says which of them it accepts: `flush_interval_ms`, `segment_bytes_max`, `retention.ms`, `segment.bytes`.
"""

import re
from typing import Final

UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
UNITS_BYTES: Final = {"b": 1} | {
    unit: 1 << 10 * power for power, letter in enumerate("kmgt", 1) for unit in (letter, f"{letter}b", f"{letter}ib")
}
MS_EXPECTED: Final = "a number with ms, s, m, h, d or w"
BYTES_EXPECTED: Final = "a number with B, kB, MB, GB or TB"

_TEXT: Final = re.compile(r"([0-9]{1,15}) ?([A-Za-z]{1,3})", re.ASCII)


def length_ms(text: str) -> int | None:
    """Return a length of time in milliseconds; None if the text is not a number with a unit of time."""
    return _read(text, UNITS_MS)


def size_bytes(text: str) -> int | None:
    """Return a size in bytes; None if the text is not a number with a unit of size."""
    return _read(text, UNITS_BYTES)


def without_unit(name: str, text: str) -> str:
    """Return the value of a setting converted to the unit in its name; a text without a unit is returned unchanged."""
    words = re.split(r"[._]", name)
    read = length_ms if "ms" in words else size_bytes if "bytes" in words else None
    found = read(text.strip()) if read is not None else None
    return text if found is None else str(found)


def expected_of(name: str) -> str:
    """Return a text with the units that a setting accepts; "" if it accepts none."""
    words = re.split(r"[._]", name)
    return MS_EXPECTED if "ms" in words else BYTES_EXPECTED if "bytes" in words else ""


def _read(text: str, units: dict[str, int]) -> int | None:
    found = _TEXT.fullmatch(text)
    unit = units.get(found[2].lower()) if found is not None else None
    return None if found is None or unit is None else int(found[1]) * unit
