"""`duolog timer` and `duolog schedule`: delayed and recurring messages of a running broker.

A length of time is a number with ms, s, m, h, d or w. A moment is ISO 8601 (no offset: local time) or milliseconds.
"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from duolog.bridge.cli.common import (
    AsJson,
    At,
    Delay,
    Headers,
    Http,
    Key,
    Queue,
    beginning,
    content_of,
    given,
    length,
    length_ms,
    local_time,
    moment_ms,
    new_app,
    query,
    reading,
    say,
    show_done,
    show_json,
    show_table,
    show_tree,
    writing,
)

BAR_WIDTH = 50
CANCELLED, RESCHEDULED, DELIVERED = "cancelled", "rescheduled", "delivered"  # Values of `outcome` in answers.
_REASONS = {
    CANCELLED: "it was cancelled before",
    DELIVERED: "it was delivered before",
    "not_found": "no pending message has this id or key; `duolog timer list` lists pending messages",
}
PAGE_MAX = 1_000  # The most rows, or bins of a histogram, that the broker returns in one answer.

timer_app = new_app("Delayed messages.")
schedule_app = new_app("Recurring messages.")

Topic = Annotated[str | None, typer.Option(metavar="TOPIC", help="only this topic")]
From = Annotated[str | None, typer.Option("--from", metavar="MOMENT", help="due at this moment or later")]
Until = Annotated[str | None, typer.Option(metavar="MOMENT", help="due before this moment")]
TimerIds = Annotated[str | None, typer.Argument(metavar="[ID]", help="id of the message; or give --topic and --key")]


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
    replace: Annotated[bool, typer.Option(help="replace pending messages with the same key")] = False,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Send a delayed message."""
    body = {"topic": topic} | content_of(value, key, queue, headers) | _time(delay, at) | {"replace": replace}
    made = writing(http).post("/api/timers", body)
    show_done(made, f"{made['id']} due {local_time(made['due_ms'])}", as_json=as_json)


@timer_app.command("list")
def timer_list(
    topic: Topic = None,
    key: Key = None,
    start: From = None,
    until: Until = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=PAGE_MAX, help=f"number of rows, at most {PAGE_MAX}")
    ] = 100,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """List pending messages in due order, and say how many there are."""
    if key is not None and topic is None:
        raise typer.BadParameter("--key needs --topic")
    api, wanted = reading(http), query(topic=topic, key=key, **_span(start, until))
    page = api.get(f"/api/timers?{wanted}&limit={limit}&content=true")
    found, count = page["timers"], api.get(f"/api/timers/count?{wanted}")["count"]
    if as_json:
        show_json(page | {"count": count})
        return
    show_table(
        ("id", "due", "topic", "queue", "key", "bytes", "form", "value"),
        [
            [
                row["id"],
                local_time(row["due_ms"]),
                row["topic"],
                row["queue"],
                beginning(row, "key"),
                row["bytes"],
                row["form"],
                beginning(row, "value"),
            ]
            for row in found
        ],
    )
    typer.echo(f"{len(found)} of {count}" + (f"; paused: {', '.join(page['paused'])}" if page["paused"] else ""))


@timer_app.command("show")
def timer_show(timer_id: str, http: Http = None, as_json: AsJson = False) -> None:
    """Show a pending message."""
    found = reading(http).get("/api/timers", timer_id)
    if as_json:
        show_json(found)
        return
    show_tree(found | {"due": local_time(found["due_ms"])})


@timer_app.command("cancel")
def timer_cancel(
    timer_id: TimerIds = None, topic: Topic = None, key: Key = None, http: Http = None, as_json: AsJson = False
) -> None:
    """Cancel a pending message."""
    _check_named(timer_id, topic, key)
    api = writing(http)
    if timer_id is not None:
        _tell(api.delete("/api/timers", timer_id), CANCELLED, as_json=as_json)
    else:
        _tell(api.delete(f"/api/timers?{query(topic=topic, key=key)}"), CANCELLED, as_json=as_json)


@timer_app.command("reschedule")
def timer_reschedule(
    timer_id: TimerIds = None,
    delay: Delay = None,
    at: At = None,
    topic: Topic = None,
    key: Key = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Change the due time of a pending message."""
    _check_named(timer_id, topic, key)
    api, time = writing(http), _time(delay, at)
    if timer_id is not None:
        decided = api.post(f"/api/timers/{quote(timer_id, safe='')}/reschedule", time)
    else:
        decided = api.post("/api/timers/reschedule", time | {"topic": topic, "key": key})
    _tell(decided, RESCHEDULED, as_json=as_json)


@timer_app.command("now")
def timer_now(
    timer_id: TimerIds = None, topic: Topic = None, key: Key = None, http: Http = None, as_json: AsJson = False
) -> None:
    """Deliver a pending message now."""
    _check_named(timer_id, topic, key)
    api = writing(http)
    if timer_id is not None:
        decided = api.act("/api/timers", timer_id, "now")
    else:
        now = {"topic": topic, "key": key, "delay_ms": 0}
        decided = api.post("/api/timers/reschedule", now)
    _tell(decided, RESCHEDULED, DELIVERED, as_json=as_json)


@timer_app.command("histogram")
def timer_histogram(
    topic: Topic = None,
    start: From = None,
    until: Until = None,
    bins: Annotated[int, typer.Option(metavar="N", min=1, max=PAGE_MAX, help="spans of time")] = 20,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Show how many pending messages are due at which time; by default within the next hour."""
    api, span = reading(http), _span(start, until)
    found = api.get(f"/api/timers/histogram?{query(topic=topic, bins=bins, **span)}")
    if as_json:
        show_json(found)
        return
    most = max(1, *found["counts"])
    for number, count in enumerate(found["counts"]):
        bar = "#" * -(-count * BAR_WIDTH // most)
        typer.echo(f"{local_time(found['from_ms'] + number * found['step_ms'])} {count:>9} {bar}".rstrip())
    end_ms = span["until_ms"] or found["from_ms"] + bins * found["step_ms"]
    later = api.get(f"/api/timers/count?{query(topic=topic, from_ms=end_ms)}")["count"]
    typer.echo(f"{later} later")


@timer_app.command("pause")
def timer_pause(topic: str, http: Http = None, as_json: AsJson = False) -> None:
    """Pause the deliveries of delayed messages to a topic."""
    done = writing(http).act("/api/topics", topic, "pause")
    show_done(done, f"paused {done['topic']}", as_json=as_json)


@timer_app.command("resume")
def timer_resume(topic: str, http: Http = None, as_json: AsJson = False) -> None:
    """Resume the deliveries of delayed messages to a topic."""
    done = writing(http).act("/api/topics", topic, "resume")
    show_done(done, f"resumed {done['topic']}", as_json=as_json)


# -- Schedules


@schedule_app.command("add")
def schedule_add(
    name: str,
    topic: str,
    value: str,
    every: Annotated[str | None, typer.Option(metavar="TIME", help="length of time between runs, like 10s")] = None,
    start: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="time of the first run; by default one period from now")
    ] = None,
    cron: Annotated[
        str | None, typer.Option(metavar="FIELDS", help="5 fields, or 6 with seconds first, or @daily")
    ] = None,
    zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="time zone of --cron, like Europe/Berlin [UTC]")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="MOMENT", help="last time of a run")] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="number of runs")] = None,
    missed: Annotated[str, typer.Option(metavar="RULE", help="runs that were missed: skip, once, all")] = "once",
    key: Key = None,
    queue: Queue = None,
    headers: Headers = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Register a schedule, which sends a message again and again.

    The same schedule given again changes nothing; another one under the name replaces it.
    """
    if (every is None) == (cron is None):
        raise typer.BadParameter("expected either --every or --cron")
    if cron is not None and start is not None:
        raise typer.BadParameter("--start goes with --every")
    if cron is None and zone is not None:
        raise typer.BadParameter("--zone goes with --cron")
    body = content_of(value, key, queue, headers) | {
        "topic": topic, "name": name, "cron": cron, "zone": zone, "missed": missed, "count": count,
        "start_ms": moment_ms("--start", start), "until_ms": moment_ms("--until", until),
        "every_ms": None if every is None else length_ms("--every", every),
    }  # fmt: skip
    made = writing(http).post("/api/schedules", {key: value for key, value in body.items() if value is not None})
    following = "ended" if made["next_ms"] is None else f"next run {local_time(made['next_ms'])}"
    show_done(made, f"{made['outcome']} {made['name']}, {following}", as_json=as_json)


@schedule_app.command("list")
def schedule_list(http: Http = None, as_json: AsJson = False) -> None:
    """List schedules."""
    rows = reading(http).get("/api/schedules")
    if as_json:
        show_json(rows)
        return
    show_table(
        ("schedule", "when", "topic", "runs", "next"),
        [
            [
                row["name"],
                f"every {length(row['every_ms'])}" if "every_ms" in row else f"{row['cron']} {row['zone']}",
                row["topic"],
                row["runs"],
                "ended" if row["next_ms"] is None else local_time(row["next_ms"]),
            ]
            for row in rows
        ],
    )


@schedule_app.command("preview")
def schedule_preview(
    expression: Annotated[str, typer.Argument(metavar="CRON", help="5 fields, or 6 with seconds first, or @daily")],
    zone: Annotated[str, typer.Option(metavar="ZONE", help="time zone, like Europe/Berlin")] = "UTC",
    count: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="number of runs")] = 10,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Show the next runs of a cron expression, and those around the changes of the clock."""
    found = reading(http).get(f"/api/cron?{query(expression=expression, zone=zone, count=count)}")
    if as_json:
        show_json(found)
        return
    for run in found["runs"]:
        typer.echo(run["local"])
    for change in found["changes"]:
        typer.echo(f"\nthe clock goes from {change['before']} to {change['after']} at {local_time(change['at_ms'])}")
        for run in change["runs"]:
            typer.echo(run["local"])


@schedule_app.command("show")
def schedule_show(name: str, http: Http = None, as_json: AsJson = False) -> None:
    """Show a schedule."""
    found = reading(http).get("/api/schedules", name)
    if as_json:
        show_json(found)
        return
    moments = {word: found.pop(f"{word}_ms", None) for word in ("start", "until", "next")}
    shown = {word: local_time(ms) for word, ms in moments.items() if ms is not None}
    show_tree(given(**found) | {"next": "ended"} | shown)


@schedule_app.command("remove")
def schedule_remove(name: str, http: Http = None, as_json: AsJson = False) -> None:
    """Remove a schedule."""
    show_done(writing(http).delete("/api/schedules", name), f"removed {name}", as_json=as_json)


# -- Arguments


def _time(delay: str | None, at: str | None) -> dict[str, int]:
    if (delay is None) == (at is None):
        raise typer.BadParameter("expected either --in or --at")
    return {"delay_ms": length_ms("--in", delay)} if delay is not None else {"at_ms": moment_ms("--at", at) or 0}


def _check_named(timer_id: str | None, topic: str | None, key: str | None) -> None:
    """Refuse arguments that name neither one message by id, nor messages by topic and key."""
    if (timer_id is not None, topic is not None, key is not None) not in {(True, False, False), (False, True, True)}:
        raise typer.BadParameter("expected either an ID, or --topic and --key")


def _span(start: str | None, until: str | None) -> dict[str, int | None]:
    start_ms, until_ms = moment_ms("--from", start), moment_ms("--until", until)
    if start_ms is not None and until_ms is not None and until_ms <= start_ms:
        raise typer.BadParameter(f"--until {until} is not after --from {start}")
    return {"from_ms": start_ms, "until_ms": until_ms}


# -- Output


def _tell(decided: dict[str, Any], *wanted: str, as_json: bool) -> None:
    """Print the outcome and the number of messages; exit with status 1 if the outcome is not one of `wanted`."""
    outcome = decided["outcome"].replace("_", " ")
    text = f"{outcome}, messages: {decided['messages']}" if decided.get("messages") else outcome
    show_done(decided, text, as_json=as_json)
    if decided["outcome"] not in wanted:
        reason = _REASONS.get(decided["outcome"], outcome)
        say(f"not {wanted[0]}: {reason}")
        raise typer.Exit(1)
