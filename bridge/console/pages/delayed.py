"""Pending messages: how many are due when, a list, one of them; and recurring schedules."""

from typing import Any, Final

from duolog.bridge.console.commands import duolog, option
from duolog.bridge.console.forms import moment
from duolog.bridge.console.pages.page import ROWS, Page, PageApi, rows_from
from duolog.bridge.http.local_api import path_of

DAY_MS: Final = 86_400_000
DAYS: Final = 28  # The days that the calendar shows.
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# The spans of the histogram, by name: the length of all bars, and the number of bars.
SPANS: Final = {
    "hour": (3_600_000, 60),
    "day": (DAY_MS, 48),
    "week": (7 * DAY_MS, 56),
    "month": (30 * DAY_MS, 60),
}


async def delayed(api: PageApi) -> Page:
    query = api.query
    topic, key, span = query.optional("topic"), query.optional("key"), query.optional("span") or "hour"
    from_ms, until_ms = query.moment_ms("from"), query.moment_ms("until")
    length_ms, bins = SPANS.get(span, SPANS["hour"])
    words = duolog(
        "timer", "list", *option("--topic", topic), *option("--key", key),
        *option("--from", None if from_ms is None else moment(from_ms)),
        *option("--until", None if until_ms is None else moment(until_ms)),
    )  # fmt: skip
    found = await api.get(
        "/api/timers", words=words, topic=topic, key=key, from_ms=from_ms, until_ms=until_ms, limit=ROWS,
        after=query.optional("after"), content=True,
    )  # fmt: skip
    found["timers"] = [api.masking.masked(row["topic"], row) for row in found["timers"]]
    count = await api.get("/api/timers/count", topic=topic, key=key, from_ms=from_ms, until_ms=until_ms)
    histogram = await _histogram(api, topic, api.now_ms, length_ms, bins)
    values = {
        "topic": topic or "", "key": key or "", "span": span, "spans": tuple(SPANS), "found": found,
        "count": count["count"], "histogram": _chart(histogram), "weeks": await _calendar(api, topic),
        "from_text": query.optional("from") or "", "until_text": query.optional("until") or "",
    }  # fmt: skip
    return Page("delayed.html", "Delayed messages", values)


async def timer(api: PageApi) -> Page:
    id = api.query.text("id")
    found = await api.get(path_of("/api/timers/{}", id), words=duolog("timer", "show", id))
    return Page("timer.html", "A delayed message", {"timer": api.masking.masked(found["topic"], found)})


async def schedules(api: PageApi) -> Page:
    found = await api.get("/api/schedules", words=duolog("schedule", "list"))
    rows, following = rows_from(found, api.query.number("row"))
    expression, zone = api.query.optional("cron"), api.query.optional("zone") or "UTC"
    preview = None
    if expression is not None:
        words = duolog("schedule", "preview", expression, *option("--zone", zone))
        preview = await api.get("/api/cron", words=words, expression=expression, zone=zone)
    values = {"rows": rows, "following": following, "expression": expression or "", "zone": zone, "preview": preview}
    return Page("schedules.html", "Schedules", values)


async def _histogram(api: PageApi, topic: str | None, from_ms: int, length_ms: int, bins: int) -> dict[str, Any]:
    """Return the numbers of pending messages in equal spans of time."""
    until_ms = from_ms + length_ms
    words = duolog(
        "timer", "histogram", *option("--topic", topic), "--from", moment(from_ms), "--until", moment(until_ms),
        "--bins", bins,
    )  # fmt: skip
    found: dict[str, Any] = await api.get(
        "/api/timers/histogram", words=words, topic=topic, from_ms=from_ms, until_ms=until_ms, bins=bins
    )
    return found


def _chart(histogram: dict[str, Any]) -> dict[str, Any]:
    """Return the bars of a chart: the begin of each in seconds, and its number."""
    begins_s = [(histogram["from_ms"] + at * histogram["step_ms"]) / 1000 for at in range(len(histogram["counts"]))]
    return {
        "kind": "bars",
        "label": "Pending messages by the time at which they are due",
        "x": begins_s,
        "series": [{"label": "due", "values": histogram["counts"]}],
    }


async def _calendar(api: PageApi, topic: str | None) -> list[list[dict[str, Any]]]:
    """Return weeks of days, from today in UTC: begin, date, day, month, weekday, number, shade from 0 to 4."""
    today_ms = api.now_ms - api.now_ms % DAY_MS
    counts: list[int] = (await _histogram(api, topic, today_ms, DAYS * DAY_MS, DAYS))["counts"]
    most = max(counts)
    days = []
    for number, count in enumerate(counts):
        begin_ms = today_ms + number * DAY_MS
        date = moment(begin_ms)[:10]
        days.append({
            "begin_ms": begin_ms, "date": date, "day": int(date[8:]), "month": MONTHS[int(date[5:7]) - 1],
            "name": WEEKDAYS[(begin_ms // DAY_MS + 3) % 7], "count": count,
            "heat": 0 if not count else 1 + 3 * count // most,
        })  # fmt: skip
    return [days[at : at + 7] for at in range(0, DAYS, 7)]
