"""`duolog quota`: how much the clients of a user or of a client id may use."""

from typing import Annotated, Any

import typer

from duolog.bridge.cli.common import (
    AsJson,
    BadOption,
    Http,
    new_app,
    reading,
    show_done,
    show_json,
    show_table,
    writing,
)

quota_app = new_app("Quotas: how much the clients of a user or of a client id may use.")

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="a user; <default> for each without its own")]
ClientId = Annotated[
    str | None, typer.Option("--client-id", metavar="ID", help="a client id; <default> for each without its own")
]
DEFAULT = "<default>"


@quota_app.command("set", epilog="Example: duolog quota set --user alice producer_byte_rate=1048576")
def quota_set(
    limits: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=NUMBER...",
            help="producer_byte_rate, consumer_byte_rate, request_percentage, connections, connection_creation_rate, "
            "delayed_messages_pending",
        ),
    ],
    user: User = None,
    client_id: ClientId = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Set quotas; other quotas of the same user and client id stay."""
    row = _change(user, client_id, dict(_limit(text) for text in limits), http)
    shown = [f"{key}={value:.12g}" for key, value in sorted(row["limits"].items())]
    show_done(row, "\n".join(shown), as_json=as_json)


@quota_app.command("remove", epilog="Example: duolog quota remove --user alice producer_byte_rate")
def quota_remove(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="the quotas to remove")],
    user: User = None,
    client_id: ClientId = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Remove quotas."""
    show_done(_change(user, client_id, dict.fromkeys(keys), http), f"removed {', '.join(keys)}", as_json=as_json)


@quota_app.command("list")
def quota_list(http: Http = None, as_json: AsJson = False) -> None:
    """List all quotas."""
    rows = reading(http).get("/api/quotas")
    if as_json:
        show_json(rows)
        return
    show_table(
        ("user", "client id", "quota", "value"),
        [
            [_name(row["user"]), _name(row["client_id"]), key, f"{value:.12g}"]
            for row in rows
            for key, value in row["limits"].items()
        ],
    )


def _name(name: str | None) -> str:
    return "-" if name is None else name or DEFAULT


def _limit(text: str) -> tuple[str, float]:
    key, _, number = text.partition("=")
    try:
        return key, float(number)
    except ValueError:
        raise BadOption(f"{text}: expected KEY=NUMBER") from None


def _change(user: str | None, client_id: str | None, limits: dict[str, Any], http: str | None) -> dict[str, Any]:
    """Set the limits that have a number, and remove the others; return all limits of the user and client id."""
    if user is None and client_id is None:
        raise BadOption("expected --user, --client-id, or both")
    body: dict[str, Any] = {"limits": limits}
    for field, name in (("user", user), ("client_id", client_id)):
        if name is not None:
            body[field] = "" if name == DEFAULT else name
    row: dict[str, Any] = writing(http).post("/api/quotas", body)
    return row
