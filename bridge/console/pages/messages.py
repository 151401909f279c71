"""Messages of a topic: browse, tail, send."""

import asyncio
import base64
import json
import shlex
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duolog.bridge.console.bodies.bounded_reader import UndecodableBody
from duolog.bridge.console.bodies.schemas import Schema, decoded, load
from duolog.bridge.console.commands import duolog, option
from duolog.bridge.console.forms import Form, moment
from duolog.bridge.console.pages.page import Page, PageApi
from duolog.bridge.http.local_api import path_of

SHOWN: Final = 50  # The number of messages on one page, and of the first ones of a tail.
TAIL_ROWS: Final = 500  # The number of new messages that one refresh of a tail shows.
TAIL_BEHIND_MAX: Final = 10_000  # A tail that has more messages to look at leaves them out.
SHOWN_BYTES: Final = 4096  # The part of a body that a list shows.
SHOWN_CHARACTERS: Final = 16_384  # The length of the indented JSON of a message.
PARSED_BYTES_MAX: Final = 16_384  # A longer body is shown as text.
FILTERS: Final = ("key", "tag", "header", "sql")
FORMS: Final = ("text", "json", "hex", "schema")


class _Place(NamedTuple):
    """The start of a read: an offset, a time, or with neither, the oldest message."""

    queue: int
    offset: int | None
    time_ms: int | None
    limit: int = SHOWN
    left_out: int = 0  # The messages between the last refresh of a tail and this place.

    @property
    def query(self) -> dict[str, int | None]:
        """The place as the API's parameters."""
        return {"queue": self.queue, "offset": self.offset, "time_ms": self.time_ms, "limit": self.limit}


async def messages(api: PageApi) -> Page:
    query, name = api.query, api.query.optional("topic")
    shown_as = query.optional("as") or "text"
    filters = {field: query.optional(field) for field in FILTERS}
    values: dict[str, Any] = {
        "topic": name, "found": None, "rows": [], "previous": None, "queue": query.number("queue") or 0,
        "is_tail": query.flag("tail"), "left_out": 0, "shown_as": shown_as, "forms": FORMS,
        "filters": {field: text or "" for field, text in filters.items()},
    }  # fmt: skip
    if name is None:
        return Page("messages.html", "Messages", values)
    topic = await api.get(path_of("/api/topics/{}", name))
    place = _place(query, topic)
    path, words = path_of("/api/topics/{}/messages", name), _words(name, place, filters)
    found = await api.get(path, words=words, **place.query, **filters)
    rows = await _rows(api, topic["name"], place.queue, found["messages"], shown_as)
    if rows and rows[0]["offset"] > found["start"]:
        values["previous"] = max(found["start"], rows[0]["offset"] - SHOWN)
    if values["is_tail"]:
        rows = rows[::-1]
    values |= {"queues": len(topic["queues"]), "found": found, "rows": rows, "left_out": place.left_out}
    return Page("messages.html", f"Messages of {topic['name']}", values)


def _place(query: Form, topic: dict[str, Any]) -> _Place:
    """Return the start of the read. A tail begins SHOWN messages before the end of the queue; later, where it ended."""
    queue = query.number("queue") or 0
    row = next((row for row in topic["queues"] if row["queue"] == queue), None)
    if not query.flag("tail") or row is None:
        return _Place(queue, query.number("offset"), query.moment_ms("time"))
    begin, end, next_offset = max(row["start"], row["end"] - SHOWN), row["end"], query.number("next")
    if next_offset is None or next_offset > end:  # The topic was deleted and created again.
        return _Place(queue, begin, None)
    if next_offset < max(row["start"], end - TAIL_BEHIND_MAX):
        return _Place(queue, begin, None, left_out=begin - next_offset)
    return _Place(queue, next_offset, None, TAIL_ROWS)


def _words(name: str, place: _Place, filters: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the command that shows the same messages."""
    time = None if place.time_ms is None else moment(place.time_ms)
    start = option("--offset", place.offset) + option("--from-time", time)
    shown_filters = (word for field, text in filters.items() for word in option(f"--{field}", text))
    return duolog(
        "consume", name, "--queue", place.queue, *(start or ("--from-beginning",)), *shown_filters,
        "--count", place.limit, "--timeout", "1s",
    )  # fmt: skip


async def _rows(
    api: PageApi, topic: str, queue: int, read: list[dict[str, Any]], shown_as: str
) -> list[dict[str, Any]]:
    """Return the rows of the page: masked messages with the body as text, and the command that shows each of them."""
    if shown_as == "schema":
        read = await asyncio.to_thread(_decoded, api.schemas_directory, topic, read)
    masked = [api.masking.masked(topic, row) for row in read]
    return [
        row | {"shown": shown(row, shown_as), "command": _command(api.host, topic, queue, row["offset"])}
        for row in masked
    ]


async def send(api: PageApi) -> Page:
    return Page("send.html", "Send a message", {"topic": api.query.optional("topic") or ""})


def _decoded(directory: str, topic: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Decode the bodies of the rows by the topic's schema. A row whose body cannot be decoded gets a `problem`."""
    try:
        schema = load(directory, topic)
    except UndecodableBody as error:
        return [row | {"problem": str(error)} for row in rows]
    return [_decoded_row(schema, row) for row in rows]


def _decoded_row(schema: Schema, row: dict[str, Any]) -> dict[str, Any]:
    if row.get("value") is None and row.get("value_base64") is None:
        return row
    try:
        if "value_bytes" in row:
            raise UndecodableBody(f"the body has {row['value_bytes']} bytes")
        value = json.dumps(decoded(schema, _raw(row)), ensure_ascii=False)
    except UndecodableBody as error:
        return row | {"problem": f"not decoded by the schema: {error}"}
    return {name: each for name, each in row.items() if name != "value_base64"} | {"value": value}


def _raw(row: dict[str, Any]) -> bytes:
    encoded = row.get("value_base64")
    return base64.b64decode(encoded) if encoded is not None else str(row.get("value") or "").encode()


def _command(host: str, topic: str, queue: int, offset: int) -> str:
    return shlex.join(duolog("message", "show", topic, queue, offset, "--http", host))


def shown(row: dict[str, Any], form: str) -> str:
    """Return the body of a message as text, indented JSON or hexadecimal digits; a long one is cut."""
    text, raw = row.get("value"), _raw(row)
    form = "json" if form == "schema" else form
    if form == "hex":
        return hexadecimal(raw[:SHOWN_BYTES])
    if form == "json" and len(raw) <= PARSED_BYTES_MAX:
        try:
            return json.dumps(json.loads(raw), indent=2, ensure_ascii=False)[:SHOWN_CHARACTERS]
        except (ValueError, RecursionError):
            pass
    return text[:SHOWN_BYTES] if text is not None else hexadecimal(raw[:SHOWN_BYTES])


def hexadecimal(raw: bytes) -> str:
    """Return lines of an offset, sixteen bytes, and their printable characters."""
    lines = []
    for at in range(0, len(raw), 16):
        piece = raw[at : at + 16]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{at:06x}  {piece.hex(' '):<47}  {characters}")
    return "\n".join(lines)
