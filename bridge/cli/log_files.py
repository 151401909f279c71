"""`duolog log`: verifies, shows and repairs the log in a data directory, without a broker.

Exit status: 0 if the log is intact, 1 if it is damaged.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from duolog.bridge.cli.common import REFUSED, AsJson, new_app, show_json, show_tree
from duolog.bridge.cli.data_files import Data, progress, reading_files

if TYPE_CHECKING:
    from duolog.store.recovery.damage import BadRange, LogReport

log_app = new_app("The log in a data directory; these commands need no broker.")


@log_app.command("verify", epilog="Example: duolog log verify --data duolog-data")
def verify(data: Data, as_json: AsJson = False) -> int:
    """Read the whole log and verify the checksum of each unit. Exit status 1 if data is damaged or missing.

    Beside a running broker, only segments to which nothing is appended any more are read.
    """
    from duolog.store.recovery.damage import Verification

    with reading_files(data) as (files, is_served):
        verification = Verification(files, is_served=is_served)
        with progress("verifying", verification.total_bytes) as note_bytes:
            report = verification.run(note_bytes)
    found = as_answer(report) | {"is_served": is_served}
    if as_json:
        show_json(found)
    else:
        _show(found, report)
    return 0 if report.is_intact else REFUSED


@log_app.command("dump", epilog="Example: duolog log dump --data duolog-data --topic orders --limit 20")
def dump(
    data: Data,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="only messages of this topic")] = None,
    queue: Annotated[int | None, typer.Option(metavar="N", min=0, help="only messages of this queue")] = None,
    start: Annotated[int, typer.Option("--from", metavar="POSITION", min=0, help="entries from here on")] = 0,
    end: Annotated[int | None, typer.Option("--until", metavar="POSITION", min=0, help="entries below it")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="units at most")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="a line of JSON for each unit")] = False,
) -> None:
    """Show the units, entries and records of the log with their positions.

    Texts are shortened; --json has them in full. Beside a running broker, the newest segment is left out.
    """
    from duolog.bridge.cli.log_dump import Filter
    from duolog.bridge.cli.log_dump import dump as show
    from duolog.store.log.format import POSITION_MAX

    wanted = Filter(start, POSITION_MAX if end is None else end, topic, queue)
    with reading_files(data) as (files, is_served):
        show(files, wanted, limit, is_served=is_served, as_json=as_json)


def as_answer(report: "LogReport") -> dict[str, Any]:
    """Return a report as a JSON object."""
    return {
        "intact": report.is_intact,
        "segments": report.segments,
        "units": report.units,
        "entries": report.entries,
        "read_bytes": report.read_bytes,
        "end": report.end,
        "torn_bytes": report.torn_bytes,
        "checkpoint_position": report.checkpoint_position,
        "missing_state": report.missing_state,
        "damage": [bad._asdict() for bad in report.damage],
    }


def _show(found: dict[str, Any], report: "LogReport") -> None:
    shown = {name.replace("_", " "): value for name, value in found.items() if name not in ("damage", "missing_state")}
    show_tree(shown)
    show_damage(report.damage)
    if report.missing_state:
        typer.echo(f"missing: {report.missing_state}")
    if found["is_served"]:
        typer.echo("A broker is using the directory: the newest segment was not read.")
    elif report.torn_bytes:
        typer.echo("The torn end was never acknowledged; the next start removes it.")
    if not report.is_intact:
        typer.echo("Restore a backup, or see what `duolog log repair` would leave out.")


def show_damage(damage: list["BadRange"]) -> None:
    """Print a line for each bad range."""
    for bad in damage:
        size = bad.end - bad.start
        typer.echo(f"damage: {bad.path} positions {bad.start}..{bad.end} ({size} bytes): {bad.reason}")
