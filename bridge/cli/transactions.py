"""`duolog txn`: transactions of both client protocols, half messages among them."""

from typing import Annotated, Any
from urllib.parse import quote

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
    show_tree,
    writing,
)

txn_app = new_app("Transactions of both client protocols.")

HALF_MESSAGE = "a half message: of a Kafka producer by topic and id, of a RocketMQ producer by --half-offset."


@txn_app.command("list")
def txn_list(http: Http = None, as_json: AsJson = False) -> None:
    """List Kafka's transactional ids and the open half messages of both client protocols, and what they wait for."""
    rows = reading(http).get("/api/transactions")
    if as_json:
        show_json(rows)
        return
    columns = ("kind", "id", "state", "age_ms", "producer", "checks", "last_asked", "waits_for")
    show_table(
        tuple(column.replace("_", " ") for column in columns),
        [[_shown(row, column) for column in columns] for row in rows],
    )


def _shown(row: dict[str, Any], column: str) -> Any:
    """Return a cell of the table; an age of -1 means that nothing is open, and is not shown."""
    return None if column == "age_ms" and row[column] < 0 else row[column]


@txn_app.command("describe")
def txn_describe(transactional_id: str, http: Http = None, as_json: AsJson = False) -> None:
    """Show the transaction of a Kafka producer: the queues it wrote to, the groups whose offsets it will commit.

    For the half message of a Kafka producer, TOPIC/ID, show its row of `duolog txn list`.
    """
    found = reading(http).get("/api/transactions", transactional_id)
    if as_json:
        show_json(found)
        return
    queues = found.pop("queues", None)
    show_tree(found)
    if queues is None:
        return
    columns = ("topic", "queue", "first_offset", "stable_end")
    show_table(
        tuple(column.replace("_", " ") for column in columns),
        [[row[column] for column in columns] for row in queues],
    )


@txn_app.command("abort")
def txn_abort(transactional_id: str, http: Http = None, as_json: AsJson = False) -> None:
    """Abort the open transaction of a Kafka producer, and fence the producer.

    Readers of committed records continue.
    """
    done = writing(http).delete("/api/transactions", transactional_id)
    show_done(done, f"aborted {done['aborted']}", as_json=as_json)


HalfTopic = Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="topic, or TOPIC/ID as `txn list` shows it")]
HalfId = Annotated[str | None, typer.Argument(metavar="[ID]", help="the id that the producer gave the message")]


HalfOffset = Annotated[
    int | None,
    typer.Option("--half-offset", metavar="N", min=0, help="of a RocketMQ producer's message, as `txn list` shows it"),
]


@txn_app.command("rollback", help=f"Roll back {HALF_MESSAGE}")
@txn_app.command("commit", help=f"Commit {HALF_MESSAGE}")
def decide_half(
    command: typer.Context,
    topic: HalfTopic = None,
    id: HalfId = None,
    half_offset: HalfOffset = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Decide a half message; the name of the command is the verdict."""
    verdict = command.info_name
    if (topic is None) == (half_offset is None):
        raise BadOption("expected either TOPIC/ID or --half-offset")
    if topic is None:
        done = writing(http).act("/api/half-messages", str(half_offset), body={"verdict": verdict})
        show_done(done, f"half message {done['half_offset']}: {done['state']}", as_json=as_json)
        return
    if id is None:
        topic, _, id = topic.partition("/")  # The name of a topic contains no slash.
    if not id:
        raise BadOption(f"expected TOPIC ID or TOPIC/ID, got {topic!r} alone")
    done = writing(http).post(f"/api/transactions/{quote(topic, safe='')}/{quote(id, safe='')}", {"verdict": verdict})
    show_done(done, f"{done['topic']} {done['id']}: {done['state']}", as_json=as_json)
