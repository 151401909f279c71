"""`duolog move` makes the log of a stopped broker a stream in an object store, and a stream a data directory."""

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from duolog.bridge.cli.common import AsJson, BadOption, ConfigFile, Overrides, Refused, say, show_done
from duolog.bridge.cli.data_directory.opening import changing_files, open_bucket, progress

if TYPE_CHECKING:
    from duolog.store.files import RealFiles
    from duolog.store.objects.remote import RemoteObjects
    from duolog.store.shared.events import Event
    from duolog.store.shared.moving.to_store import LocalLog

ID_BYTES: Final = 16
NO_BROKER: Final = b"\xff" * 4  # At the end of a writer's id, in the place of the number of a broker.
WATCH_MS: Final = 2_000  # An idle owner creates a slot each second, unless `cluster.takeover_ms` is above 3 s.


def move(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="the data directory of a stopped broker")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="make its log the stream of this prefix")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="make it of the stream of this prefix")
    ] = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Move the log of a stopped broker into an object store, for `serve --shared`, or out of it.

    The prefix, or the data directory, must be empty. What is moved stays where it was, and is compared at the end by
    checksums. shared.endpoint and shared.region say where the store is, by --set or --config.
    """
    from duolog.store.errors import StoreError

    if (to is None) == (source is None):
        raise BadOption("expected either --to URL or --from URL")
    try:
        if to is not None:
            position = _to_store(data, to, open_bucket(to, config, overrides))
            text = f"{to} has the log up to position {position}; start the broker with --shared {to} --data {data}"
        else:
            assert source is not None, "one of the two options is given"
            position = _to_disk(data, source, open_bucket(source, config, overrides))
            text = f"{data} has the log up to position {position}; start the broker with --data {data}"
    except (StoreError, OSError) as error:
        raise Refused(f"nothing was moved: {error}") from error
    show_done({"directory": str(data), "url": to or source, "position": position}, text, as_json=as_json)


# -- Into an object store


def _to_store(data: Path, url: str, objects: "RemoteObjects") -> int:
    """Return the end of the log. Raises Refused, BadOption, StoreError and OSError."""
    from duolog.store.shared.moving.to_store import MoveToStore, check_is_no_copy
    from duolog.store.shared.wal.wal_object import Identity

    with changing_files(data) as files:
        check_is_no_copy(files)
        local = _verified(files)
        writer = secrets.token_bytes(ID_BYTES - len(NO_BROKER)) + NO_BROKER
        identity = Identity(secrets.token_bytes(ID_BYTES), writer, local.epoch)
        with progress("moving", 2 * local.total_bytes) as note_bytes:
            move = MoveToStore(objects, url, local, note_bytes)
            asyncio.run(move.run(identity, secrets.token_hex(ID_BYTES)))
        return local.end


def _verified(files: "RealFiles") -> "LocalLog":
    """Verify a log, and that a stream can have it. Raises Refused and OSError."""
    from duolog.bridge.cli.data_directory.tables import ManifestReader
    from duolog.delay.tables.table_files import check_files
    from duolog.store.errors import Corruption
    from duolog.store.recovery.damage import Verification
    from duolog.store.shared.moving.to_store import LocalLog

    manifest = ManifestReader()
    verification = Verification(files, is_served=False, note_state=manifest.note)
    with progress("verifying", verification.total_bytes) as note_bytes:
        report = verification.run(note_bytes)
    if not report.is_intact:
        what = report.missing_state or f"{report.damage[0].path} at position {report.damage[0].start}"
        raise Refused(
            f"the log is damaged: {what}; `duolog log verify` lists all places, and `log repair` repairs them"
        )
    if not report.units:
        raise Refused("the log is empty: start the broker with --shared and an empty data directory")
    for entry in manifest.tables:
        try:
            check_files(files, entry)
        except Corruption as error:
            raise Refused(
                f"a table of delayed messages is damaged: {error}; restore a backup, or start and stop the broker with "
                "this data directory: it continues without the messages of a table that it cannot open"
            ) from error
    return LocalLog(files, report.end, report.epoch, manifest.named)


# -- Out of an object store


def _to_disk(data: Path, url: str, objects: "RemoteObjects") -> int:
    """Return the end of the log. Raises StoreError and OSError."""
    from duolog.bridge.cli.data_directory.tables import ManifestReader, check_tables
    from duolog.store.backup.new_directory import NewDataDirectory
    from duolog.store.recovery.damage import Verification
    from duolog.store.recovery.format_version import FORMAT_VERSION
    from duolog.store.shared.moving.to_disk import WrittenLog, move_to_disk

    with NewDataDirectory(str(data)) as new:
        manifest = ManifestReader()

        def read_log() -> WrittenLog:
            report = Verification(new.files, is_served=False, note_state=manifest.note).run()
            return WrittenLog(report.stored_ms, manifest.named)

        moved = asyncio.run(move_to_disk(objects, url, new.files, WATCH_MS, TroubleReport(), read_log))
        for damaged in check_tables(new.files, manifest.tables, lambda size: None, may_lack=False):
            raise Refused(
                f"a table of delayed messages is damaged: {damaged.reason}; restore the objects {damaged.path}/"
            )
        new.finish(moved.position, FORMAT_VERSION)
    if not moved.is_ended:
        say("the last owner was not stopped in order: what it had not uploaded is on its own disk only")
    return moved.position


class TroubleReport:
    """Prints the first of several failed requests in a row, which are repeated."""

    def __init__(self) -> None:
        self._is_in_trouble = False

    def __call__(self, event: "Event") -> None:
        from duolog.store.shared.events import StoreTrouble

        if isinstance(event, StoreTrouble) and not self._is_in_trouble:
            say(event.reason)
        self._is_in_trouble = isinstance(event, StoreTrouble)
