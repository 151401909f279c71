"""The broker itself: its settings, its clients, its log lines."""

from duolog.bridge.console.commands import duolog, option
from duolog.bridge.console.pages.page import ROWS, Page, PageApi
from duolog.bridge.http.observation.log_lines import LEVELS

LINES = 200


async def settings(api: PageApi) -> Page:
    search = api.query.optional("search")
    words = duolog("config", "show", *option("--search", search), "--http", api.host)
    rows = await api.get("/api/settings", words=words, search=search)
    return Page("settings.html", "Settings", {"rows": rows, "search": search or ""})


async def clients(api: PageApi) -> Page:
    found = await api.get("/api/clients", words=duolog("clients", "--limit", ROWS), limit=ROWS)
    return Page("clients.html", "Clients", {"found": found})


async def log(api: PageApi) -> Page:
    level, component, search = (api.query.optional(name) for name in ("level", "component", "search"))
    words = duolog(
        "lines", "--limit", LINES, *option("--level", level), *option("--component", component),
        *option("--search", search),
    )  # fmt: skip
    lines = await api.get("/api/log", words=words, limit=LINES, level=level, component=component, search=search)
    values = {
        "lines": lines[::-1],
        "level": level or "",
        "levels": ("", *LEVELS),
        "component": component or "",
        "search": search or "",
    }
    return Page("log.html", "Log", values)
