"""The list of topics, and one topic."""

from duolog.bridge.console.commands import duolog, option
from duolog.bridge.console.pages.page import ROWS, Page, PageApi, rows_from
from duolog.bridge.http.local_api import path_of


async def topics(api: PageApi) -> Page:
    search, everything = api.query.optional("search"), api.query.flag("all")
    words = duolog("topic", "list", *option("--search", search), *option("--all", everything))
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
    values = {"rows": rows, "following": following, "search": search or "", "everything": everything}
    return Page("topics.html", "Topics", values)


async def topic(api: PageApi) -> Page:
    name = api.place("name")
    found = await api.get(path_of("/api/topics/{}", name), words=duolog("topic", "describe", name))
    groups = await api.get(path_of("/api/topics/{}/groups", name), words=duolog("topic", "groups", name))
    queues, following = rows_from(found["queues"], api.query.number("queue"))
    more = len(groups) - ROWS
    values = {"topic": found, "queues": queues, "following": following, "groups": groups[:ROWS], "more": more}
    return Page("topic.html", found["name"], values)
