"""`duolog warnings`, `history`, `clients`, `lines`: what a running broker does now, and did within the last hour."""

from typing import Annotated

import typer

from duolog.bridge.cli.common import AsJson, Http, length, local_time, query, reading, show_json, show_table

WIRES = ("kafka", "rocketmq", "http")


def warnings(http: Http = None, as_json: AsJson = False) -> None:
    """List what needs a person now, or did within the last hour."""
    rows = reading(http).get("/api/warnings")
    if as_json:
        show_json(rows)
    else:
        show_table(("kind", "what is wrong"), [[row["kind"], row["text"]] for row in rows])


def history(http: Http = None, as_json: AsJson = False) -> None:
    """Show rates and the lateness of delayed messages in the last hour, for each ten seconds."""
    found = reading(http).get("/api/history")
    if as_json:
        show_json(found)
        return
    heads = (f"{wire} records {way}/s" for wire in WIRES for way in ("in", "out"))
    show_table(
        ("until", *heads, "delivered", "late p99 ms", "fsync ms", "slow turns"),
        [
            [
                local_time(row["at_ms"]),
                *(row[what][wire] for wire in WIRES for what in ("records_in", "records_out")),
                row["delivered"],
                row["late_p99_ms"],
                row["fsync_ms"],
                row["long_turns"],
            ]
            for row in found["intervals"]
        ],
    )


def clients(
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="number of rows")] = 100,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """List the connections of clients, the oldest first."""
    found = reading(http).get(f"/api/clients?{query(limit=limit)}")
    if as_json:
        show_json(found)
        return
    show_table(
        ("protocol", "peer", "client", "groups", "age", "idle", "last request"),
        [
            [
                row["wire"],
                row["peer"],
                row["client_id"],
                ", ".join(row["groups"]),
                length(row["age_ms"]),
                length(row["idle_ms"]),
                row["last_request"],
            ]
            for row in found["clients"]
        ],
    )


def lines(
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="number of lines")] = 100,
    level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error, and above")] = None,
    component: Annotated[str | None, typer.Option(metavar="NAME", help="only lines of this component")] = None,
    search: Annotated[str | None, typer.Option(metavar="TEXT", help="only lines that contain this text")] = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Show the last lines that a running broker has logged."""
    wanted = query(limit=limit, level=level, component=component, search=search)
    rows = reading(http).get(f"/api/log?{wanted}")
    if as_json:
        show_json(rows)
        return
    for row in rows:
        typer.echo(f"{local_time(row['at_ms'])} {row['level']} {row['component']} {row['text']}")
