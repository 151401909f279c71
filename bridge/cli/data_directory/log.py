"""`duolog log`: verifies, shows and repairs the log in a data directory, without a broker.

Exit status: 0 if the log is intact, 1 if it is damaged.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from duolog.bridge.cli import REFUSED
from duolog.bridge.cli.common import AsJson, Refused, new_app, show_json, show_tree
from duolog.bridge.cli.data_directory.opening import Data, changing_files, progress, reading_files

if TYPE_CHECKING:
    from duolog.store.recovery.damage import BadRange, LogReport
    from duolog.store.recovery.repair import Placeholder, RepairPlan

log_app = new_app("The log in a data directory; these commands need no broker.")


@log_app.command("verify", epilog="Example: duolog log verify --data duolog-data")
def verify(data: Data, as_json: AsJson = False) -> int:
    """Read the whole log and the tables of delayed messages, and verify all checksums.

    Exit status 1 if data is damaged or missing. Beside a running broker, only segments to which nothing is appended any
    more are read.
    """
    from duolog.bridge.cli.data_directory.tables import ManifestReader, check_tables
    from duolog.store.recovery.damage import Verification
    from duolog.store.shared.own_log import PATH as COPY_PATH

    with reading_files(data) as (files, is_served):
        manifest = ManifestReader()
        verification = Verification(files, is_served=is_served, note_state=manifest.note)
        # The tables of the checkpoint; the log above it may name others of about the same size.
        total_bytes = verification.total_bytes + sum(entry.size for entry in manifest.tables)
        with progress("verifying", total_bytes) as note_bytes:
            report = verification.run(note_bytes)
            damaged_tables = check_tables(
                files, manifest.tables, note_bytes, may_lack=is_served or COPY_PATH in files.list(".")
            )
    found = as_answer(report) | {
        "intact": report.is_intact and not damaged_tables,
        "tables": len(manifest.tables),
        "damaged_tables": [each._asdict() for each in damaged_tables],
        "is_served": is_served,
    }
    if verification.remote_count:
        found["segments_in_object_store"] = verification.remote_count
    if as_json:
        show_json(found)
    else:
        _show(found, report)
    return 0 if found["intact"] else REFUSED


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
    from duolog.bridge.cli.data_directory.dump import Filter
    from duolog.bridge.cli.data_directory.dump import dump as show
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
    lists = ("damage", "damaged_tables", "missing_state")
    shown = found | ({"checkpoint_position": "none"} if found["checkpoint_position"] < 0 else {})
    show_tree({name.replace("_", " "): value for name, value in shown.items() if name not in lists})
    show_damage(report.damage)
    for table in found["damaged_tables"]:
        typer.echo(f"damage: {table['path']} ({table['damaged_places']} places): {table['reason']}")
    if report.missing_state:
        typer.echo(f"missing: {report.missing_state}")
    if found["is_served"]:
        others = "" if report.segments else ", and there is no other one"
        typer.echo(f"A broker is using the directory: the newest segment was not read{others}.")
    elif report.torn_bytes:
        typer.echo("The torn end was never acknowledged; the next start removes it.")
    if not report.is_intact:
        typer.echo("Restore a backup, or see what `duolog log repair` would leave out.")
    elif found["damaged_tables"]:
        typer.echo("The broker delivers the other delayed messages; a backup has those that are damaged.")


def show_damage(damage: list["BadRange"]) -> None:
    """Print a line for each bad range."""
    for bad in damage:
        size = bad.end - bad.start
        typer.echo(f"damage: {bad.path} positions {bad.start}..{bad.end} ({size} bytes): {bad.reason}")


# -- Repair


@log_app.command("repair", epilog="Example: duolog log repair --data duolog-data --dry-run")
def repair(
    data: Data,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be left out")] = False,
    as_json: AsJson = False,
) -> int:
    """Replace damaged parts of the log, so that a broker serves the rest; report what is left out.

    The old files are kept in a directory `repair-N` of the data directory. Nothing is changed in an intact log. With
    --dry-run, the exit status is 1 if there is something to repair.
    """
    from duolog.store.recovery import repair as repairs

    with changing_files(data) as files:
        try:
            plan = repairs.plan_repair(files, _placeholder)
        except repairs.RepairRefused as error:
            raise Refused(str(error)) from error
        is_needed = not plan.report.is_intact
        kept = None
        if is_needed and not dry_run:
            kept = repairs.repair(str(data), files, plan, _placeholder)
    _show_repair(plan, kept, as_json=as_json)
    return REFUSED if is_needed and dry_run else 0


def _placeholder(base_offset: int, count: int, stored_ms: int) -> "Placeholder":
    """Return a Kafka control batch that covers lost offsets; readers of both protocols and Spark skip it.

    Its record is of Kafka's type LEADER_CHANGE (2), which belongs to no transaction, and its leader epoch is -1.
    """
    from duolog.bridge.records import frame_formats
    from duolog.protocol.kafka.batch_builder import BatchBuilder
    from duolog.store.recovery.repair import Placeholder

    builder = BatchBuilder()
    builder.append(0, stored_ms, b"\0\0\0\2", b"")
    batch = builder.finish(base_offset, -1, is_control=True, last_offset_delta=count - 1)
    return Placeholder(frame_formats.KAFKA, bytes(batch))


def _show_repair(plan: "RepairPlan", kept: str | None, *, as_json: bool) -> None:
    from duolog.bridge.cli.data_directory.dump import learn_name
    from duolog.store.index.queue import Queue

    names: dict[int, str] = {}
    for payload in () if plan.state is None else plan.state.records:
        learn_name(payload, names)
    lost: list[dict[str, Any]] = [
        {"topic": names.get(number, f"number {number}"), "queue": queue_id, "start": each.start, "end": each.end}
        for filling in plan.fillings
        for each in filling.lost
        for number, queue_id in [Queue.split(each.key)]
    ]
    found = as_answer(plan.report) | {
        "lost_offsets": lost,
        "lost_state": [bad._asdict() for bad in plan.lost_state],
        "old_files": kept,
    }
    if as_json:
        show_json(found)
        return
    if plan.report.is_intact:
        typer.echo("The log is intact; nothing was changed.")
        return
    show_damage(plan.report.damage)
    for row in lost:
        typer.echo(
            f"left out: offsets {row['start']}..{row['end'] - 1} of queue {row['queue']} of topic {row['topic']}"
        )
    for bad in plan.lost_state:
        typer.echo(
            f"state records in positions {bad.start}..{bad.end} are lost: topics, committed offsets and delayed "
            "messages may be those of an earlier time"
        )
    typer.echo("The last messages of a queue leave no trace if they were damaged, and are not in this list.")
    typer.echo("Nothing was changed." if kept is None else f"The log is repaired; the old files are in {kept}.")
