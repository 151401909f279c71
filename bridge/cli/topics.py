"""`duolog topic`: topics of a running broker."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from duolog.bridge.cli.common import (
    AsJson,
    BadOption,
    Http,
    Search,
    new_app,
    pairs,
    query,
    reading,
    say,
    show_done,
    show_json,
    show_table,
    show_tree,
    writing,
)
from duolog.bridge.config import units

topic_app = new_app("Topics.")

Configs = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="a topic config; like retention.ms=7d, max.message.bytes=1MB"),
]


@topic_app.command("list")
def topic_list(
    search: Search = None,
    everything: Annotated[bool, typer.Option("--all", help="also show the broker's own topics")] = False,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """List topics."""
    rows = sorted(reading(http).get(f"/api/topics?{query(search=search)}"), key=lambda row: str(row["name"]))
    shown = [row for row in rows if everything or not row["is_system"]]
    if as_json:
        show_json(shown)
        return
    columns = ("name", "queues", "records", "size_bytes", "kafka_name", "rocketmq_name")
    show_table(
        ("topic", "queues", "records", "bytes", "kafka", "rocketmq"),
        [[row[column] for column in columns] for row in shown],
    )
    if len(shown) < len(rows):
        say(f"{len(rows) - len(shown)} topics of the broker's own are not shown; --all shows them")


@topic_app.command("describe")
def topic_describe(name: str, http: Http = None, as_json: AsJson = False) -> None:
    """Show a topic's queues, offsets and configs."""
    found = reading(http).get("/api/topics", name)
    if as_json:
        show_json(found)
        return
    queues = found.pop("queues")
    show_tree(found)
    show_table(
        ("queue", "start", "end", "bytes", "epoch"),
        [[queue["queue"], queue["start"], queue["end"], queue["size_bytes"], queue["epoch"]] for queue in queues],
    )


@topic_app.command("groups")
def topic_groups(name: str, http: Http = None, as_json: AsJson = False) -> None:
    """List the groups of both client protocols that read a topic, with their lag in it."""
    rows = reading(http).get("/api/topics", name, "groups")
    if as_json:
        show_json(rows)
        return
    show_table(
        ("group", "active in", "members", "lag", "no position yet"),
        [[row["name"], row["active"] or "-", row["members"], row["lag"], row["lag_without_position"]] for row in rows],
    )


@topic_app.command("create")
def topic_create(
    name: str,
    queues: Annotated[int | None, typer.Option(help="number of queues; by default `topics.queues`")] = None,
    configs: Configs = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    body: dict[str, Any] = {"name": name, "configs": dict(_configs(configs or ()))}
    if queues is not None:
        body["queues"] = queues
    made = writing(http).post("/api/topics", body)
    show_done(made, f"created {made['name']} with {len(made['queues'])} queues", as_json=as_json)


def _configs(texts: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, _config_value(name, text)) for name, text in pairs("--config", texts)]


def _config_value(name: str, text: str) -> str:
    """Convert a value with a unit, such as 7d, to the plain number that the broker expects. Raises BadOption."""
    value, expected = units.without_unit(name, text), units.expected_of(name)
    if value and expected and not value.removeprefix("-").isdecimal():
        raise BadOption(f"--config {name}: expected an integer or {expected}, got {text!r}")
    return value


@topic_app.command("configure")
def topic_configure(
    name: str,
    configs: Annotated[
        list[str],
        typer.Option(
            "--config", metavar="KEY=VALUE", help="a topic config, like retention.ms=7d; KEY= sets the default"
        ),
    ],
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Change configs of a topic; configs that are not named stay as they are."""
    changes = {key: value or None for key, value in _configs(configs)}
    found = writing(http).patch("/api/topics", name, body={"configs": changes})
    configs_text = " ".join(f"{key}={value}" for key, value in found["configs"].items()) or "-"
    show_done(found, f"{found['name']}: {configs_text}", as_json=as_json)


@topic_app.command("delete")
def topic_delete(name: str, http: Http = None, as_json: AsJson = False) -> None:
    """Delete a topic with all its messages and the groups' committed offsets in it."""
    done = writing(http).delete("/api/topics", name)
    show_done(done, f"deleted {done['deleted']}", as_json=as_json)
