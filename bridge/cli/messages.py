"""`duolog produce`, `duolog consume`, `duolog message show`: messages of a running broker, over its HTTP port.

These commands are for trying and inspecting. `duolog consume` has no group and commits no offsets, so it changes
nothing.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any
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
    Refused,
    content_of,
    given,
    is_number,
    length_ms,
    local_time,
    moment_ms,
    new_app,
    printable,
    query,
    reading,
    say,
    show_json,
    show_tree,
    writing,
)
from duolog.bridge.clock import SystemClock

if TYPE_CHECKING:
    from duolog.bridge.cli.http_client import Api

message_app = new_app("Single messages.")

AT_ONCE = 1000  # The number of messages in one request.
POLL_S = 0.2


# -- produce


def produce(
    topic: str,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE]...", help="one message each; by default each line of the input is a message"),
    ] = None,
    key: Key = None,
    headers: Headers = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="RocketMQ's tag")] = None,
    queue: Queue = None,
    delay: Delay = None,
    at: At = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Send messages, which may have a key, headers, a tag and a delay; prints topic, queue and offset of each."""
    if delay is not None and at is not None:
        raise typer.BadParameter("expected one of --in, --at")
    common = content_of(None, key, queue, headers) | given(
        tag=tag, delay_ms=None if delay is None else length_ms("--in", delay), at_ms=moment_ms("--at", at)
    )
    api, path = writing(http), f"/api/topics/{quote(topic, safe='')}/messages"
    lines = iter(values) if values else (line.rstrip("\r\n") for line in sys.stdin)
    while some := list(islice(lines, AT_ONCE if values or not sys.stdin.isatty() else 1)):
        sent = api.post(path, {"messages": [common | {"value": value} for value in some]})["messages"]
        if as_json:
            show_json(sent)
        else:
            for each in sent:
                typer.echo(_place(topic, each))


def _place(topic: str, sent: dict[str, Any]) -> str:
    if "id" in sent:
        return f"{topic}/{sent['queue']} timer {sent['id']} due {local_time(sent['due_ms'])}"
    return f"{topic}/{sent['queue']}/{sent['offset']}"


# -- consume


def consume(
    topic: str,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="begin at the log start")] = False,
    offset: Annotated[int | None, typer.Option(metavar="N", min=0, help="begin at this offset; needs --queue")] = None,
    tail: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="show the last N messages of each queue, then new ones")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from-time", metavar="MOMENT", help="begin with the first message of this moment or later"),
    ] = None,
    queue: Annotated[int | None, typer.Option(metavar="N", min=0, help="only this queue")] = None,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="end after this number of messages")] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="end when no message came for this time, like 10s")
    ] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAGS", help="only messages with one of these: a || b")] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="only messages with this key")] = None,
    header: Annotated[str | None, typer.Option(metavar="NAME[=VALUE]", help="only messages with this header")] = None,
    sql: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="only messages whose headers fit, in SQL92: price > 10")
    ] = None,
    http: Http = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
) -> int:
    """Show the messages of a topic: new ones until Ctrl-C by default.

    Exit status 1 if --timeout ended it before --count messages came.
    """
    if sum([from_beginning, offset is not None, tail is not None, since is not None]) > 1:
        raise typer.BadParameter("expected one of --from-beginning, --offset, --tail, --from-time")
    if offset is not None and queue is None:
        raise typer.BadParameter("--offset needs --queue")
    timeout_ms = None if timeout is None else length_ms("--timeout", timeout)
    since_ms = moment_ms("--from-time", since)
    reader = _Reader(reading(http), topic, given(tag=tag, key=key, header=header, sql=sql))
    places = reader.places(queue, from_beginning=from_beginning, offset=offset, tail=tail, since_ms=since_ms)
    shown = 0
    try:
        for message in reader.follow(places, timeout_ms):
            _show(topic, message, as_json=as_json)
            shown += 1
            if shown == count:
                return 0
    except KeyboardInterrupt:
        return 0
    if count is not None:
        say(f"{shown} of {count} messages came before --timeout {timeout}")
        return 1
    return 0


class _Reader:
    """Reads the queues of one topic, one after the other."""

    def __init__(self, api: "Api", topic: str, filters: dict[str, str]) -> None:
        self._api, self._name, self._filters, self._clock = api, topic, filters, SystemClock()

    def places(
        self, queue: int | None, *, from_beginning: bool, offset: int | None, tail: int | None, since_ms: int | None
    ) -> dict[int, int]:
        """Return the offset at which to begin in each queue."""
        queues = self._api.get("/api/topics", self._name)["queues"]
        if queue is not None and queue >= len(queues):
            raise typer.BadParameter(f"--queue: {self._name} has the queues 0 to {len(queues) - 1}, got {queue}")
        found = {}
        for row in queues if queue is None else [queues[queue]]:
            start, end = row["start"], row["end"]
            if since_ms is not None:
                page = self._page(row["queue"], time_ms=since_ms, limit=1)
                found[row["queue"]] = page["messages"][0]["offset"] if page["messages"] else page["next"]
            elif offset is not None:
                found[row["queue"]] = offset
            else:
                found[row["queue"]] = start if from_beginning else max(start, end - tail) if tail else end
        return found

    def follow(self, places: dict[int, int], timeout_ms: int | None) -> Iterator[dict[str, Any]]:
        """Yield messages as they are stored; end when no message came within `timeout_ms`."""
        last_ms = self._clock.mono_ms()
        while True:
            is_idle = True
            for queue, at in places.items():
                page = self._page(queue, offset=at, limit=AT_ONCE)
                is_idle = is_idle and page["next"] == at  # A filter may leave out all messages of a page.
                places[queue] = page["next"]
                for message in page["messages"]:
                    yield message | {"queue": queue}
                last_ms = self._clock.mono_ms() if page["messages"] else last_ms
            if is_idle:
                if timeout_ms is not None and self._clock.mono_ms() - last_ms >= timeout_ms:
                    return
                time.sleep(POLL_S)

    def _page(self, queue: int, **wanted: int) -> dict[str, Any]:
        path = f"/api/topics/{quote(self._name, safe='')}/messages?{query(queue=queue, **wanted, **self._filters)}"
        found: dict[str, Any] = self._api.get(path)
        return found


def _show(topic: str, message: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        import json

        typer.echo(json.dumps({"topic": topic} | message, ensure_ascii=False))
        return
    key, value = (message.get(name, message.get(f"{name}_base64")) for name in ("key", "value"))
    headers = " ".join(f"{name}={text}" for name, text in message["headers"].items())
    parts = [f"{message['queue']}/{message['offset']}", local_time(message["timestamp_ms"])]
    parts += [f"key={key}"] if key is not None else []
    parts += [f"[{headers}]"] if headers else []
    typer.echo(printable("  ".join([*parts, "null" if value is None else value])))


# -- message show


@message_app.command("show")
def message_show(
    place: Annotated[list[str], typer.Argument(metavar="TOPIC QUEUE OFFSET | TOPIC/QUEUE/OFFSET | ID")],
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Show one message, by topic, queue and offset or by RocketMQ's message id."""
    found = _found(reading(http), place)
    if as_json:
        show_json(found)
    else:
        show_tree(found | {"time": local_time(found["timestamp_ms"])})


def _found(api: "Api", place: Sequence[str]) -> dict[str, Any]:
    parts = place[0].split("/") if len(place) == 1 else list(place)
    if len(parts) == 1:
        found: dict[str, Any] = api.get("/api/messages", parts[0])
        return found
    if len(parts) != 3 or not (is_number(parts[1]) and is_number(parts[2])):
        raise typer.BadParameter(f"expected TOPIC QUEUE OFFSET, TOPIC/QUEUE/OFFSET or an ID, got {' '.join(place)!r}")
    topic, queue, offset = parts[0], int(parts[1]), int(parts[2])
    path = f"/api/topics/{quote(topic, safe='')}/messages?{query(queue=queue, offset=offset, limit=1)}"
    messages = api.get(path)["messages"]
    if not messages or messages[0]["offset"] != offset:
        raise Refused(f"there is no message at {topic}/{queue}/{offset}; see duolog topic describe {topic}")
    shown: dict[str, Any] = {"topic": topic, "queue": queue} | messages[0]
    return shown
