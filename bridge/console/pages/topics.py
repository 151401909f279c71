"""The list of topics, and one topic."""

from duolog.bridge.console.commands import duolog, option
from duolog.bridge.console.pages.page import ROWS, Page, PageApi
from duolog.bridge.http.local_api import path_of


async def topics(api: PageApi) -> Page:
    search, everything = api.query.optional("search"), api.query.flag("all")
    words = duolog("topic", "list", *option("--all", everything))
    found = await api.get(
        "/api/topics",
        words=words,
        search=search,
        after=api.query.optional("after"),
        limit=ROWS + 1,
        system=everything,
    )
    rows = found[:ROWS]
    following = rows[-1]["name"] if len(found) > ROWS else None
    return Page(
        "topics.html",
        "Topics",
        {"rows": rows, "following": following, "search": search or "", "everything": everything},
        api.commands,
    )


async def topic(api: PageApi) -> Page:
    name = api.place("name")
    found = await api.get(path_of("/api/topics/{}", name), words=duolog("topic", "describe", name))
    groups = await api.get(path_of("/api/topics/{}/groups", name), words=duolog("topic", "groups", name))
    start = api.query.number("queue") or 0
    queues = found["queues"][start : start + ROWS]
    following = start + ROWS if len(found["queues"]) > start + ROWS else None
    return Page(
        "topic.html",
        found["name"],
        {"topic": found, "queues": queues, "following": following, "groups": groups[:ROWS], "more": len(groups) - ROWS},
        api.commands,
    )
