"""Consumer groups of both client protocols, one group, and dead letters."""

from typing import Any

from duolog.bridge.console.commands import duolog, option
from duolog.bridge.console.pages.page import ROWS, Page, PageApi, rows_from
from duolog.bridge.http.api.groups import LETTER_FILTERS
from duolog.bridge.http.local_api import path_of


async def groups(api: PageApi) -> Page:
    search = api.query.optional("search") or ""
    found = [row for row in await api.get("/api/groups", words=duolog("group", "list")) if search in row["name"]]
    rows, following = rows_from(found, api.query.number("row"))
    values = {"rows": rows, "following": following, "search": search, "count": len(found)}
    return Page("groups.html", "Groups", values)


async def group(api: PageApi) -> Page:
    name = api.place("name")
    found = await api.get(path_of("/api/groups/{}", name), words=duolog("group", "describe", name))
    members = await api.get(path_of("/api/groups/{}/members", name), words=duolog("group", "members", name))
    positions, following = rows_from(found["positions"], api.query.number("row"))
    values = {
        "group": found,
        "positions": positions,
        "following": following,
        "members": members["members"][:ROWS],
        "more": len(members["members"]) - ROWS,
    }
    return Page("group.html", name, values)


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
    values = {"group": name, "found": found, "known": known, "filters": texts}
    return Page("dead_letters.html", "Dead letters", values)


def _masked(api: PageApi, dead_letter_topic: str, row: dict[str, Any]) -> dict[str, Any]:
    """Mask a dead letter by the rules for its dead-letter topic and for the topic that it came from."""
    return api.masking.masked(row["origin"]["topic"], api.masking.masked(dead_letter_topic, row))
