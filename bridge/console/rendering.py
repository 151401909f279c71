"""Rendering of pages with Jinja2. Everything that a page shows is escaped; nothing in the templates turns that off.

A thread imports this module for the first page, and compiles each template when a page needs it for the first time:
the import takes 40 ms of processor time, a template 10 to 40 ms, and all templates together 300 ms.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from duolog.bridge.console.assets import address
from duolog.bridge.console.forms import moment
from duolog.bridge.console.labels import LABELS

TEMPLATES: Final = Path(__file__).parent / "templates"
SHARED: Final = ("base.html", "macros.html")  # Rendering of a page loads them.
STEP_CHARACTERS: Final = 4096  # A page is rendered in parts of this size.
UNITS_MS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
KIB: Final = 1024


@cache
def template(name: str) -> Template:
    """Return a template, which is compiled at the first call."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    """Return the environment with the templates that all others use, compiled."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    made.globals |= {"address": address, "LABELS": LABELS}
    made.filters |= {"number": number, "bytes": size, "duration": duration, "moment": moment, "json": compact_json}
    made.filters["segment"] = partial(quote, safe="")
    for name in SHARED:
        made.get_template(name)
    return made


def parts(found: Template, values: Mapping[str, Any]) -> Iterator[bytes | None]:
    """Yield a page in parts; the loop may run after each of them."""
    piece, characters = list[str](), 0
    for text in found.generate(**values):
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
