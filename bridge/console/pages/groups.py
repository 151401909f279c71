"""Consumer groups of both client protocols, one group, and dead letters."""

from typing import Any, Final

from duolog.bridge.console.commands import duolog, option
from duolog.bridge.console.pages.page import ROWS, Page, PageApi, rows_from
from duolog.bridge.http.api.groups import LETTER_FILTERS
from duolog.bridge.http.local_api import path_of
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.names import DLQ_PREFIX

GROUPS: Final = 1000  # The number of groups with dead letters that a page names.


async def groups(api: PageApi) -> Page:
    search = api.query.optional("search")
    found = await api.get("/api/groups", words=duolog("group", "list", *option("--search", search)), search=search)
    rows, following = rows_from(found, api.query.number("row"))
    values = {"rows": rows, "following": following, "search": search or ""}
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
    values = {"group": name, "found": found, "groups": await _with_dead_letters(api, name), "filters": texts}
    return Page("dead_letters.html", "Dead letters", values)


async def _with_dead_letters(api: PageApi, group: str | None) -> list[dict[str, Any]]:
    """Return the groups that have a dead-letter topic, with the topic's number of records."""
    words = duolog("topic", "list", "--search", DLQ_PREFIX) if group is None else ()
    topics = await api.get("/api/topics", words=words, search=DLQ_PREFIX, limit=GROUPS)
    named = [(row["rocketmq_name"], row["records"]) for row in topics]
    return [
        {"name": group_of_rocketmq(topic.removeprefix(DLQ_PREFIX)), "count": count}
        for topic, count in named
        if topic.startswith(DLQ_PREFIX)
    ]


def _masked(api: PageApi, dead_letter_topic: str, row: dict[str, Any]) -> dict[str, Any]:
    """Mask a dead letter by the rules for its dead-letter topic and for the topic that it came from."""
    return api.masking.masked(row["origin"]["topic"], api.masking.masked(dead_letter_topic, row))
