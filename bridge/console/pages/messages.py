"""Messages of a topic: browse, tail, send."""

import asyncio
import base64
import json
import shlex
from typing import Any, Final

from duolog.bridge.console.bodies.bounded_reader import UndecodableBody
from duolog.bridge.console.bodies.schemas import Schema, decoded, load
from duolog.bridge.console.commands import duolog, option
from duolog.bridge.console.forms import moment
from duolog.bridge.console.pages.page import Page, PageApi
from duolog.bridge.http.local_api import path_of

SHOWN: Final = 50  # The number of messages on one page.
SHOWN_BYTES: Final = 4096  # The part of a body that a list shows.
SHOWN_CHARACTERS: Final = 16_384  # Of indented JSON.
PARSED_BYTES_MAX: Final = 16_384  # A longer body is shown as text.
FILTERS: Final = ("key", "tag", "header", "sql")
FORMS: Final = ("text", "json", "hex", "schema")


async def messages(api: PageApi) -> Page:
    query, name = api.query, api.query.optional("topic")
    shown_as = query.optional("as") or "text"
    values: dict[str, Any] = {"topic": name, "found": None, "shown_as": shown_as, "forms": FORMS, "rows": []}
    values |= {"filters": {field: query.optional(field) or "" for field in FILTERS}}
    values |= {"is_tail": query.flag("tail"), "queue": query.number("queue") or 0, "previous": None}
    if name is None:
        return Page("messages.html", "Messages", values, api.commands)
    topic = await api.get(path_of("/api/topics/{}", name))
    ends = {row["queue"]: row for row in topic["queues"]}
    queue, offset, time_ms = values["queue"], query.number("offset"), query.moment_ms("time")
    values |= {"queues": len(ends)}
    if values["is_tail"] and queue in ends:
        offset, time_ms = max(ends[queue]["start"], ends[queue]["end"] - SHOWN), None
    filters = {field: query.optional(field) for field in FILTERS}
    place = option("--offset", offset) + option("--from-time", None if time_ms is None else moment(time_ms))
    shown_filters = (word for field, text in filters.items() for word in option(f"--{field}", text))
    words = duolog(
        "consume", name, "--queue", queue, *(place or ("--from-beginning",)), *shown_filters, "--count", SHOWN,
        "--timeout", "1s",
    )  # fmt: skip
    found = await api.get(
        path_of("/api/topics/{}/messages", name),
        words=words,
        queue=queue,
        offset=offset,
        time_ms=time_ms,
        limit=SHOWN,
        **filters,
    )
    read = found["messages"]
    if shown_as == "schema":
        read = await asyncio.to_thread(_decoded, api.schemas_directory, topic["name"], read)
    masked = [api.masking.masked(topic["name"], row) for row in read]
    rows = [
        row | {"shown": shown(row, shown_as), "command": _command(api.host, topic["name"], queue, row["offset"])}
        for row in masked
    ]
    values |= {"found": found, "rows": rows}
    if rows and rows[0]["offset"] > found["start"]:
        values["previous"] = max(found["start"], rows[0]["offset"] - SHOWN)
    return Page("messages.html", f"Messages of {topic['name']}", values, api.commands)


async def send(api: PageApi) -> Page:
    return Page("send.html", "Send a message", {"topic": api.query.optional("topic") or ""}, api.commands)


def _decoded(directory: str, topic: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with their bodies decoded by the topic's schema; one that cannot be decoded has a `problem`."""
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
