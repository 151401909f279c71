"""Consumer groups of both client protocols, one group, and dead letters."""

from typing import Any

from duolog.bridge.console.commands import duolog, option
from duolog.bridge.console.pages.page import ROWS, Page, PageApi
from duolog.bridge.http.local_api import path_of

LETTER_FILTERS = ("reason", "topic", "key", "tag")


async def groups(api: PageApi) -> Page:
    search = api.query.optional("search") or ""
    found = [row for row in await api.get("/api/groups", words=duolog("group", "list")) if search in row["name"]]
    start = api.query.number("row") or 0
    following = start + ROWS if len(found) > start + ROWS else None
    return Page(
        "groups.html",
        "Groups",
        {"rows": found[start : start + ROWS], "following": following, "search": search, "count": len(found)},
        api.commands,
    )


async def group(api: PageApi) -> Page:
    name = api.place("name")
    found = await api.get(path_of("/api/groups/{}", name), words=duolog("group", "describe", name))
    members = await api.get(path_of("/api/groups/{}/members", name), words=duolog("group", "members", name))
    start = api.query.number("row") or 0
    positions = found["positions"][start : start + ROWS]
    following = start + ROWS if len(found["positions"]) > start + ROWS else None
    values = {
        "group": found,
        "positions": positions,
        "following": following,
        "members": members["members"][:ROWS],
        "more": len(members["members"]) - ROWS,
    }
    return Page("group.html", name, values, api.commands)


async def dead_letters(api: PageApi) -> Page:
    name, offset = api.query.optional("group"), api.query.number("offset")
    found = None
    if name is not None:
        filters = {field: api.query.optional(field) for field in LETTER_FILTERS}
        words = duolog(
            "group", "dead-letters", name, *option("--offset", offset),
            *(word for field, text in filters.items() for word in option(f"--{field}", text)),
        )  # fmt: skip
        found = await api.get(
            path_of("/api/groups/{}/dead-letters", name), words=words, offset=offset, limit=ROWS, **filters
        )
    if found is not None:
        found["dead_letters"] = [_masked(api, found["topic"], row) for row in found["dead_letters"]]
    texts = {field: api.query.optional(field) or "" for field in LETTER_FILTERS}
    known = [row["name"] for row in await api.get("/api/groups")][:1000]
    return Page(
        "dead_letters.html",
        "Dead letters",
        {"group": name, "found": found, "known": known, "filters": texts},
        api.commands,
    )


def _masked(api: PageApi, dead_letter_topic: str, row: dict[str, Any]) -> dict[str, Any]:
    """Mask a dead letter by the rules for its dead-letter topic and for the topic that it came from."""
    return api.masking.masked(row["origin"]["topic"], api.masking.masked(dead_letter_topic, row))
