"""`duolog backup` copies the data directory of a running broker, and `duolog restore` makes a data directory of a copy.

The copy is a directory, or objects in a bucket. The command copies the files, not the broker, so a backup does not hold
up the broker's event loop. It must run as a user who may read the data directory.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from duolog.bridge.cli.common import AsJson, ConfigFile, Http, Overrides, Refused, reason_of, show_done, writing
from duolog.bridge.cli.data_directory.opening import is_url, open_bucket, open_stream, progress

if TYPE_CHECKING:
    from duolog.bridge.cli.http_client import Api
    from duolog.store.backup.manifest import BackupManifest
    from duolog.store.backup.sources import BackupPlan, Sources
    from duolog.store.objects.interface import ObjectStore

RENEW_BYTES: Final = 64 << 20  # The lease is renewed whenever so many bytes were copied.
ATTEMPTS: Final = 10  # The broker may remove a table between its answer and the opening of the file.

TOKEN_VARIABLE = "DUOLOG_TOKEN"
PLACE = "PLACE"

Target = Annotated[
    str,
    typer.Argument(metavar=PLACE, help="a directory that is empty or does not exist, or a URL like s3://bucket/prefix"),
]
Source = Annotated[str, typer.Argument(metavar=PLACE, help="the directory or the URL of the backup")]
Copy = Callable[["Sources", Callable[[int], None]], None]


def backup(
    target: Target,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="the data directory, if its path is another one here")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar=TOKEN_VARIABLE, metavar="TOKEN", help="a token of http.readers_file")
    ] = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Copy the data directory of the running broker, on the machine of the broker.

    The copy has everything that was acknowledged before the command began. Each unit of the copied log is verified.
    A URL names a prefix of a bucket; shared.endpoint and shared.region say where it is, by --set or --config. With
    shared.cache_bytes, the broker's disk may lack segments: then shared.url is needed, too.
    """
    from duolog.store.errors import StoreError

    api = writing(http)
    api.token = token
    lease = ""
    try:
        copy = _to_bucket(target, config, overrides) if is_url(target) else _to_directory(target)
        lease, plan, sources = _open_sources(api, data, lambda: open_stream(config, overrides))
        with progress("copying", sources.total_bytes) as note_bytes:
            copy(sources, _renewing(api, lease, note_bytes))
        sources.close()
    except (StoreError, OSError) as error:
        raise Refused(f"no backup was made: {reason_of(error)}") from error
    finally:
        _release(api, lease)
    done = {"directory": target, "position": plan.position, "bytes": sources.total_bytes}
    text = f"{target} has the log up to position {plan.position}, {sources.total_bytes} bytes, verified"
    show_done(done, text, as_json=as_json)


def _to_directory(target: str) -> Copy:
    from duolog.store.backup.directory import copy_to_directory
    from duolog.store.backup.new_directory import check_is_new

    check_is_new(target)
    return lambda sources, note_bytes: copy_to_directory(sources, target, note_bytes)


def _to_bucket(url: str, config: Path | None, overrides: list[str] | None) -> Copy:
    """Check that the prefix is empty, or has an unfinished backup. Raises BackupFailed and ObjectStoreError."""
    from duolog.store.backup.bucket import BucketBackup

    made = BucketBackup(open_bucket(url, config, overrides), url)
    left_over = asyncio.run(made.left_over())
    return lambda sources, note_bytes: asyncio.run(made.upload(sources, left_over, note_bytes))


def _open_sources(
    api: "Api", data: Path | None, objects: "Callable[[], ObjectStore | None]"
) -> tuple[str, "BackupPlan", "Sources"]:
    """Take a lease, and open the files of its plan; again with another lease if one of them was removed meanwhile."""
    from duolog.store.backup.manifest import BackupFailed
    from duolog.store.backup.sources import FilesChanged, Sources

    reason: object = ""
    for _ in range(ATTEMPTS):
        answer = api.act("/api/backups")
        plan = _plan_of(answer, data)
        try:
            return answer["lease"], plan, Sources(plan, objects)
        except FilesChanged as error:
            reason = error
            _release(api, answer["lease"])
        except OSError:
            _release(api, answer["lease"])
            raise
    raise BackupFailed(f"the broker's files changed {ATTEMPTS} times while they were opened: {reason}")


def _release(api: "Api", lease: str) -> None:
    """End a lease, if there is one. If the broker does not answer, the lease ends when its time is over."""
    from duolog.bridge.cli.http_client import HttpApiError

    if lease:
        with suppress(HttpApiError):
            api.delete("/api/leases", lease)


def _plan_of(answer: dict[str, Any], data: Path | None) -> "BackupPlan":
    from duolog.store.backup.manifest import CopiedFile
    from duolog.store.backup.sources import BackupPlan

    files = [[CopiedFile(row["path"], row["size"]) for row in answer[name]] for name in ("segments", "tables")]
    return BackupPlan(answer["directory"] if data is None else str(data), answer["position"], *files)


def _renewing(api: "Api", lease: str, note_bytes: Callable[[int], None]) -> Callable[[int], None]:
    """Return a function that calls `note_bytes`, and renews the lease whenever RENEW_BYTES were copied.

    The function raises HttpApiError if the lease has ended.
    """
    since_renewal = 0

    def note(count: int) -> None:
        nonlocal since_renewal
        note_bytes(count)
        since_renewal += count
        if since_renewal >= RENEW_BYTES:
            since_renewal = 0
            api.act("/api/leases", lease)

    return note


def restore(
    source: Source,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="the new data directory; empty or not there")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Make a data directory of a backup; checksums and each unit of its log are verified."""
    from duolog.store.backup.manifest import BackupFailed
    from duolog.store.objects.errors import ObjectStoreError

    try:
        if is_url(source):
            restored = asyncio.run(_restore_bucket(source, data, config, overrides))
        else:
            restored = _restore_directory(source, data)
    except (BackupFailed, ObjectStoreError, OSError) as error:
        raise Refused(f"nothing was restored: {reason_of(error)}") from error
    done = {"directory": str(data), "position": restored.position, "bytes": restored.total_bytes}
    text = f"{data} has the log up to position {restored.position}; start the broker with --data {data}"
    show_done(done, text, as_json=as_json)


def _restore_directory(directory: str, data: Path) -> "BackupManifest":
    from duolog.store.backup.directory import DirectoryBackup

    found = DirectoryBackup(directory)
    with progress("restoring", found.manifest.total_bytes) as note_bytes:
        found.restore(str(data), note_bytes)
    return found.manifest


async def _restore_bucket(url: str, data: Path, config: Path | None, overrides: list[str] | None) -> "BackupManifest":
    from duolog.store.backup.bucket import BucketBackup

    found = BucketBackup(open_bucket(url, config, overrides), url)
    manifest = await found.manifest()
    with progress("restoring", manifest.total_bytes) as note_bytes:
        await found.restore(manifest, str(data), note_bytes)
    return manifest
