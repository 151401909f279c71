"""Rendering of pages with Jinja2. Everything that a page shows is escaped; nothing in the templates turns that off.

This module is imported for the first page, in a thread, because the import and the templates take 100 ms.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from duolog.bridge.console.assets import address
from duolog.bridge.console.forms import moment

TEMPLATES: Final = Path(__file__).parent / "templates"
STEP_CHARACTERS: Final = 4096  # A page is rendered in parts of this size.
UNITS_MS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
KIB: Final = 1024


@cache
def environment() -> Environment:
    """Return the environment with all templates compiled; they are compiled once."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    made.globals["address"] = address
    made.filters |= {"number": number, "bytes": size, "duration": duration, "moment": moment, "json": compact_json}
    made.filters["segment"] = partial(quote, safe="")
    for name in made.list_templates():
        made.get_template(name)
    return made


def parts(template: str, values: Mapping[str, Any]) -> Iterator[bytes | None]:
    """Yield a page in parts; the loop may run after each of them."""
    piece, characters = list[str](), 0
    for text in environment().get_template(template).generate(**values):
        piece.append(text)
        characters += len(text)
        if characters >= STEP_CHARACTERS:
            yield "".join(piece).encode("utf-8", "replace")
            piece, characters = [], 0
    yield "".join(piece).encode("utf-8", "replace")


# -- Filters


def number(value: float) -> str:
    """Write a number with commas between thousands; a fraction has one digit."""
    return f"{value:,.1f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"


def size(value: float) -> str:
    """Write a number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < KIB:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= KIB
    return f"{value:,.1f} TiB"


def duration(ms: float) -> str:
    """Write a length of time in its two greatest units."""
    if abs(ms) < 1000:
        return f"{ms:,.0f} ms"
    rest, words = int(abs(ms)), list[str]()
    for unit, unit_ms in UNITS_MS:
        count, rest = divmod(rest, unit_ms)
        if count:
            words.append(f"{count:,} {unit}")
        elif words:
            break
        if len(words) == 2:
            break
    return ("-" if ms < 0 else "") + " ".join(words)


def compact_json(value: Any) -> str:
    """Write a value as JSON for an attribute of an element."""
    return json.dumps(value, separators=(",", ":"))
