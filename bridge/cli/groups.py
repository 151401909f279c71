"""`duolog group`: consumer groups of both client protocols."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from duolog.bridge.cli.common import (
    AsJson,
    Execute,
    Http,
    Search,
    beginning,
    given,
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

group_app = new_app("Consumer groups of both client protocols.")

LetterReason = Annotated[str | None, typer.Option(metavar="REASON", help="only dead letters with this reason")]
LetterTopic = Annotated[str | None, typer.Option(metavar="TOPIC", help="only dead letters that came from this topic")]
LetterKey = Annotated[str | None, typer.Option(metavar="KEY", help="only dead letters with this key")]
LetterTag = Annotated[str | None, typer.Option(metavar="TAG", help="only dead letters with this tag")]

DRY_RUN = "nothing was changed; add --execute to do it"


@group_app.command("list")
def group_list(search: Search = None, http: Http = None, as_json: AsJson = False) -> None:
    """List groups, the client protocol in which each is active, and its lag."""
    rows = reading(http).get(f"/api/groups?{query(search=search)}")
    if as_json:
        show_json(rows)
        return
    show_table(
        ("group", "active in", "members", "lag", "no position yet", "topics"),
        [
            [
                row["name"],
                row["active"] or "-",
                row["members"],
                row["lag"],
                row["lag_without_position"],
                ", ".join(row["topics"]),
            ]
            for row in rows
        ],
    )


@group_app.command("describe")
def group_describe(name: str, http: Http = None, as_json: AsJson = False) -> None:
    """Show a group's committed offsets."""
    found = reading(http).get("/api/groups", name)
    if as_json:
        show_json(found)
        return
    positions = found.pop("positions")
    show_tree(found)
    show_table(
        ("topic", "queue", "position", "start", "end", "lag"),
        [
            [row["topic"], row["queue"], _position(row["position"]), row["start"], row["end"], row["lag"]]
            for row in positions
        ],
    )


def _position(offset: int | None) -> int | str:
    return "none yet" if offset is None else offset


@group_app.command("members")
def group_members(name: str, http: Http = None, as_json: AsJson = False) -> None:
    """List the live members of a group, with their assignments."""
    found = reading(http).get("/api/groups", name, "members")
    if as_json:
        show_json(found)
        return
    show_table(
        ("protocol", "member", "client", "host", "topics", "assignment"),
        [
            [row["wire"], row["member"], row["client_id"], row["host"], ", ".join(row["topics"]), _assignment(row)]
            for row in found["members"]
        ],
    )


def _assignment(row: dict[str, Any]) -> str:
    if row["assignment"] is None:
        return "by the clients"
    return "; ".join(f"{each['topic']}: {', '.join(map(str, each['queues']))}" for each in row["assignment"])


# -- Dead letters


@group_app.command("dead-letters")
def group_dead_letters(
    name: str,
    offset: Annotated[int | None, typer.Option(metavar="N", min=0, help="first offset")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="number of rows")] = 100,
    reason: LetterReason = None,
    topic: LetterTopic = None,
    key: LetterKey = None,
    tag: LetterTag = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """List a group's dead letters, with the reason and the origin of each; --json also has the time of each attempt."""
    path = f"/api/groups/{quote(name, safe='')}/dead-letters?" + query(
        offset=offset, limit=limit, reason=reason, topic=topic, key=key, tag=tag
    )
    found = reading(http).get(path)
    if as_json:
        show_json(found)
        return
    show_table(
        ("offset", "reason", "attempts", "last failure", "origin", "message id", "key", "value", "redriven"),
        [
            [
                row["offset"],
                row["reason"] or "unknown",
                row["attempts"],
                _last_failure(row["failed_attempts"]),
                _origin(row["origin"]),
                row["origin"]["message_id"],
                beginning(row, "key"),
                beginning(row, "value"),
                "yes" if row["is_redriven"] else "no",
            ]
            for row in found["dead_letters"]
        ],
    )
    if found["next"] is not None:
        say(f"there are more: --offset {found['next']}")


def _last_failure(attempts: list[dict[str, Any]]) -> str | None:
    return local_time(attempts[-1]["failed_ms"]) if attempts else None


def _origin(origin: dict[str, Any]) -> str:
    """Return the known parts of topic/queue/offset of a dead letter's original, as `duolog message show` takes them."""
    parts = [origin["topic"], origin["queue"], origin["offset"]]
    return "/".join(str(part) for part in parts if part is not None)


@group_app.command("redrive")
def group_redrive(
    name: str,
    to: Annotated[
        str | None,
        typer.Option(metavar="retry|topic", help="the group's retry topic, or the topics that the messages came from"),
    ] = None,
    offsets: Annotated[
        list[int] | None,
        typer.Option("--offset", metavar="N", min=0, help="only the dead letter at this offset; repeatable"),
    ] = None,
    reason: LetterReason = None,
    topic: LetterTopic = None,
    key: LetterKey = None,
    tag: LetterTag = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Send a group's dead letters again.

    They go to the group's retry topic, which only RocketMQ consumers read. With --to topic they go to the topics that
    they came from, where every group gets them again.
    """
    chosen = given(offsets=offsets or None, reason=reason, topic=topic, key=key, tag=tag)
    done = writing(http).act("/api/groups", name, "redrive", body={"to": to} | chosen)
    show_done(done, f"redrove {done['redriven']} dead letters of {done['group']}", as_json=as_json)


# -- Committed offsets


@group_app.command("reset")
def group_reset(
    name: str,
    to: Annotated[str | None, typer.Option(metavar="earliest|latest", help="the log start offset, or the end")] = None,
    time: Annotated[
        str | None, typer.Option("--to-time", metavar="MOMENT", help="the first message of this moment or later")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="this offset, or the nearest one in the queue")
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="by default all topics with a committed offset; repeatable"),
    ] = None,
    execute: Execute = False,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Change the committed offsets of a group without members.

    Only shows the new offsets, unless --execute is given.
    """
    if sum(each is not None for each in (to, time, offset)) != 1:
        raise typer.BadParameter("expected one of --to, --to-time, --to-offset")
    if to not in (None, "earliest", "latest"):
        raise typer.BadParameter(f"--to: expected earliest or latest, got {to!r}")
    api = writing(http) if execute else reading(http)
    wanted = given(to=to, time_ms=moment_ms("--to-time", time), offset=offset, topics=topics or None, execute=execute)
    done = api.act("/api/groups", name, "reset", body=wanted)
    if as_json:
        show_json(done)
    else:
        rows = [[row["topic"], row["queue"], _position(row["from"]), row["to"]] for row in done["positions"]]
        show_table(("topic", "queue", "position", "new position"), rows)
    if not execute:
        say(DRY_RUN)


@group_app.command("delete")
def group_delete(name: str, execute: Execute = False, http: Http = None, as_json: AsJson = False) -> None:
    """Delete the committed offsets and the config of a group without members.

    Only shows what would be deleted, unless --execute is given.
    """
    api = writing(http) if execute else reading(http)
    done = api.delete(f"/api/groups/{quote(name, safe='')}?{query(execute=str(execute).lower())}")
    verb = "deleted" if execute else "would delete"
    show_done(done, f"{verb} {done['group']} with {done['positions']} positions", as_json=as_json)
    if not execute:
        say(DRY_RUN)
