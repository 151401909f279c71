"""`duolog timer` and `duolog schedule`: delayed and recurring messages of a running broker.

A length of time is a number with ms, s, m, h or d. A moment is ISO 8601 (no offset: local time) or milliseconds.
"""

import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

import typer

if TYPE_CHECKING:
    from bridge.http_client import Api

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
BAR_WIDTH = 50
CANCELLED, RESCHEDULED, DELIVERED = "cancelled", "rescheduled", "delivered"  # verdicts
PAGE_MAX = 1_000  # rows, or spans of a histogram, that the broker gives at once

timer_app = typer.Typer(help="Delayed messages.", rich_markup_mode=None)
schedule_app = typer.Typer(help="Recurring messages.", rich_markup_mode=None)

Http = Annotated[str, typer.Option("--http", metavar="HOST:PORT", envvar="DUOLOG_HTTP", help="the broker's HTTP port")]
HTTP_ADDRESS = "127.0.0.1:9644"
Key = Annotated[str | None, typer.Option(metavar="KEY", help="the message's key")]
Queue = Annotated[int | None, typer.Option(metavar="N", help="else by the key, or any")]
Headers = Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="a header; repeatable")]
Delay = Annotated[str | None, typer.Option("--in", metavar="TIME", help="length of time from now, like 90s")]
At = Annotated[str | None, typer.Option(metavar="MOMENT", help="moment, like 2030-01-31T08:00:00+01:00")]
Topic = Annotated[str | None, typer.Option(metavar="TOPIC", help="only this topic")]
From = Annotated[str | None, typer.Option("--from", metavar="MOMENT", help="due at this moment or later")]
Until = Annotated[str | None, typer.Option(metavar="MOMENT", help="due before this moment")]
TimerIds = Annotated[str | None, typer.Argument(metavar="[ID]", help="else --topic and --key")]


# -- Timers


@timer_app.command("add")
def timer_add(
    topic: str,
    value: str,
    delay: Delay = None,
    at: At = None,
    key: Key = None,
    queue: Queue = None,
    headers: Headers = None,
    replace: Annotated[bool, typer.Option(help="those that wait with the same key")] = False,
    http: Http = HTTP_ADDRESS,
) -> None:
    """Send a message for later."""
    body = _content(topic, value, key, queue, headers) | _time(delay, at) | {"replace": replace}
    made = _api(http).post("/api/timers", body)
    typer.echo(f"{made['id']} due {local_time(made['due_ms'])}")


@timer_app.command("list")
def timer_list(
    topic: Topic = None,
    key: Key = None,
    start: From = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=PAGE_MAX, help=f"so many, to {PAGE_MAX}")] = 100,
    http: Http = HTTP_ADDRESS,
) -> None:
    """List pending messages in due order, and say how many there are."""
    from bridge.cli import show_table

    if key is not None and topic is None:
        raise typer.BadParameter("--key needs --topic")
    api, wanted = _api(http), _query(topic=topic, key=key, **_span(start, until))
    page = api.get(f"/api/timers?{wanted}&limit={limit}")
    found, count = page["timers"], api.get(f"/api/timers/count?{wanted}")["count"]
    show_table(
        ("id", "due", "topic", "queue", "bytes", "form"),
        [
            [row["id"], local_time(row["due_ms"]), row["topic"], row["queue"], row["bytes"], row["form"]]
            for row in found
        ],
    )
    typer.echo(f"{len(found)} of {count}" + (f"; paused: {', '.join(page['paused'])}" if page["paused"] else ""))


@timer_app.command("show")
def timer_show(timer_id: str, http: Http = HTTP_ADDRESS) -> None:
    """Show a pending message."""
    from bridge.cli import show_tree

    found = _api(http).get("/api/timers", timer_id)
    show_tree(found | {"due": local_time(found["due_ms"])})


@timer_app.command("cancel")
def timer_cancel(timer_id: TimerIds = None, topic: Topic = None, key: Key = None, http: Http = HTTP_ADDRESS) -> None:
    """Let a message never be delivered."""
    _check_named(timer_id, topic, key)
    api = _api(http)
    if timer_id is not None:
        _tell(api.delete("/api/timers", timer_id), CANCELLED)
    else:
        _tell(api.delete(f"/api/timers?{_query(topic=topic, key=key)}"), CANCELLED)


@timer_app.command("reschedule")
def timer_reschedule(
    timer_id: TimerIds = None,
    delay: Delay = None,
    at: At = None,
    topic: Topic = None,
    key: Key = None,
    http: Http = HTTP_ADDRESS,
) -> None:
    """Deliver a message at another time."""
    _check_named(timer_id, topic, key)
    api, time = _api(http), _time(delay, at)
    if timer_id is not None:
        _tell(api.post(f"/api/timers/{quote(timer_id, safe='')}/reschedule", time), RESCHEDULED)
    else:
        _tell(api.post("/api/timers/reschedule", time | {"topic": topic, "key": key}), RESCHEDULED)


@timer_app.command("now")
def timer_now(timer_id: str, http: Http = HTTP_ADDRESS) -> None:
    """Deliver a message now."""
    _tell(_api(http).act("/api/timers", timer_id, "now"), RESCHEDULED, DELIVERED)


@timer_app.command("histogram")
def timer_histogram(
    topic: Topic = None,
    start: From = None,
    until: Until = None,
    bins: Annotated[int, typer.Option(metavar="N", min=1, max=PAGE_MAX, help="spans of time")] = 20,
    http: Http = HTTP_ADDRESS,
) -> None:
    """Show how many messages are due when; the next hour unless told otherwise."""
    api, span = _api(http), _span(start, until)
    found = api.get(f"/api/timers/histogram?{_query(topic=topic, bins=bins, **span)}")
    most = max(1, *found["counts"])
    for number, count in enumerate(found["counts"]):
        bar = "#" * -(-count * BAR_WIDTH // most)
        typer.echo(f"{local_time(found['from_ms'] + number * found['step_ms'])} {count:>9} {bar}".rstrip())
    end_ms = span["until_ms"] or found["from_ms"] + bins * found["step_ms"]
    later = api.get(f"/api/timers/count?{_query(topic=topic, from_ms=end_ms)}")["count"]
    typer.echo(f"{later} later")


@timer_app.command("pause")
def timer_pause(topic: str, http: Http = HTTP_ADDRESS) -> None:
    """Hold the deliveries to a topic back."""
    typer.echo(f"paused {_api(http).act('/api/topics', topic, 'pause')['topic']}")


@timer_app.command("resume")
def timer_resume(topic: str, http: Http = HTTP_ADDRESS) -> None:
    """Let them go on."""
    typer.echo(f"resumed {_api(http).act('/api/topics', topic, 'resume')['topic']}")


# -- Schedules


@schedule_app.command("add")
def schedule_add(
    name: str,
    topic: str,
    value: str,
    every: Annotated[str | None, typer.Option(metavar="TIME", help="length of time between runs, like 10s")] = None,
    start: Annotated[str | None, typer.Option(metavar="MOMENT", help="of the first run; else one period on")] = None,
    cron: Annotated[str | None, typer.Option(metavar="FIELDS", help="five fields, or six with seconds first")] = None,
    zone: Annotated[str | None, typer.Option(metavar="ZONE", help="of --cron, like Europe/Berlin; else UTC")] = None,
    until: Annotated[str | None, typer.Option(metavar="MOMENT", help="no run after it")] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="so many runs")] = None,
    missed: Annotated[str, typer.Option(metavar="RULE", help="runs that were missed: skip, once, all")] = "once",
    key: Key = None,
    queue: Queue = None,
    headers: Headers = None,
    http: Http = HTTP_ADDRESS,
) -> None:
    """Send a message again and again. The same once more changes nothing; another under the name replaces it."""
    if (every is None) == (cron is None):
        raise typer.BadParameter("expected either --every or --cron")
    if cron is not None and start is not None:
        raise typer.BadParameter("--start goes with --every")
    if cron is None and zone is not None:
        raise typer.BadParameter("--zone goes with --cron")
    body = _content(topic, value, key, queue, headers) | {
        "name": name, "cron": cron, "zone": zone, "missed": missed, "count": count, "start_ms": _ms("--start", start),
        "until_ms": _ms("--until", until), "every_ms": None if every is None else _length_ms("--every", every),
    }  # fmt: skip
    made = _api(http).post("/api/schedules", {key: value for key, value in body.items() if value is not None})
    following = "ended" if made["next_ms"] is None else f"next run {local_time(made['next_ms'])}"
    typer.echo(f"{made['outcome']} {made['name']}, {following}")


@schedule_app.command("list")
def schedule_list(http: Http = HTTP_ADDRESS) -> None:
    """List schedules."""
    from bridge.cli import show_table

    show_table(
        ("schedule", "when", "topic", "runs", "next"),
        [
            [
                row["name"],
                f"every {row['every_ms']} ms" if "every_ms" in row else f"{row['cron']} {row['zone']}",
                row["topic"],
                "-" if row["runs"] is None else row["runs"],
                "ended" if row["next_ms"] is None else local_time(row["next_ms"]),
            ]
            for row in _api(http).get("/api/schedules")
        ],
    )


@schedule_app.command("show")
def schedule_show(name: str, http: Http = HTTP_ADDRESS) -> None:
    """Show a schedule."""
    from bridge.cli import show_tree

    found = _api(http).get("/api/schedules", name)
    moments = {word: found.pop(f"{word}_ms", None) for word in ("start", "until", "next")}
    shown = {word: local_time(ms) for word, ms in moments.items() if ms is not None}
    show_tree(_given(**found) | {"next": "ended"} | shown)


@schedule_app.command("remove")
def schedule_remove(name: str, http: Http = HTTP_ADDRESS) -> None:
    """Let a schedule run no more."""
    _api(http).delete("/api/schedules", name)
    typer.echo(f"removed {name}")


# -- What was typed


def _api(http: str) -> "Api":
    from bridge.http_client import Api

    return Api(http)


def _content(topic: str, value: str, key: str | None, queue: int | None, headers: list[str] | None) -> dict[str, Any]:
    named: dict[str, str] = {}
    for pair in headers or ():
        name, equals, text = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"--header {name}: expected NAME=VALUE")
        if name in named:
            raise typer.BadParameter(f"--header {name}: given twice")
        named[name] = text
    body: dict[str, Any] = {"topic": topic, "value": value, "headers": named}
    return body | _given(key=key, queue=queue)


def _time(delay: str | None, at: str | None) -> dict[str, int]:
    if (delay is None) == (at is None):
        raise typer.BadParameter("expected either --in or --at")
    return {"delay_ms": _length_ms("--in", delay)} if delay is not None else {"at_ms": _ms("--at", at) or 0}


def _check_named(timer_id: str | None, topic: str | None, key: str | None) -> None:
    """A verb is about one message, or about all of a topic that have a key."""
    if (timer_id is not None, topic is not None, key is not None) not in {(True, False, False), (False, True, True)}:
        raise typer.BadParameter("expected either an ID, or --topic and --key")


def _length_ms(option: str, text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})(ms|s|m|h|d)", text)
    if found is None:
        raise typer.BadParameter(f"{option}: expected a number with ms, s, m, h or d, got {text!r}")
    return int(found[1]) * UNITS_MS[found[2]]


def _ms(option: str, moment: str | None) -> int | None:
    if moment is None:
        return None
    if moment.isdecimal():
        return int(moment)
    try:
        return int(datetime.fromisoformat(moment).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{option}: expected a moment like 2030-01-31T08:00:00+01:00, got {moment!r}"
        ) from error


def _span(start: str | None, until: str | None) -> dict[str, int | None]:
    start_ms, until_ms = _ms("--from", start), _ms("--until", until)
    if start_ms is not None and until_ms is not None and until_ms <= start_ms:
        raise typer.BadParameter(f"--until {until} is not after --from {start}")
    return {"from_ms": start_ms, "until_ms": until_ms}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _query(**values: Any) -> str:
    return urlencode(_given(**values))


# -- What is shown


def _tell(decided: dict[str, Any], *wanted: str) -> None:
    """Print the verdict, and of how many; exit status 1 if it is none that was wanted."""
    verdict = decided["verdict"].replace("_", " ")
    typer.echo(f"{verdict}, messages: {decided['messages']}" if decided.get("messages") else verdict)
    if decided["verdict"] not in wanted:
        raise typer.Exit(1)


def local_time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{ms} ms"
