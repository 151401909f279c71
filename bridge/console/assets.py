"""The files of `static/`, which pages load: the style, the script, htmx and uPlot.

Versions: htmx 2.0.11 (Zero-Clause BSD), uPlot 1.6.32 (MIT); each licence stands beside its file.
"""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final[Mapping[str, str]] = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "uPlot.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "htmx.LICENSE": "text/plain",
    "uPlot.LICENSE": "text/plain",
    "icon.svg": "image/svg+xml",
}


@cache
def content(name: str) -> bytes:
    """Return a file, which is read once. Raises KeyError for a name that is not in TYPES."""
    if name not in TYPES:
        raise KeyError(name)
    return (FOLDER / name).read_bytes()


@cache
def address(name: str) -> str:
    """Return the path of a file with a mark of its content, so that browsers may keep the file for ever."""
    return f"/console/static/{name}?v={sha256(content(name)).hexdigest()[:12]}"
