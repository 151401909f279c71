"""`duolog backup` copies the data directory of a running broker, and `duolog restore` makes a data directory of a copy.

The command copies the files, not the broker, so a backup does not hold up the broker's event loop. It must run as a
user who may read the data directory.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from duolog.bridge.cli.common import AsJson, Http, Refused, show_done, writing
from duolog.bridge.cli.data_directory.opening import progress

if TYPE_CHECKING:
    from duolog.bridge.cli.http_client import Api
    from duolog.store.recovery.backup import BackupPlan, Sources

RENEW_BYTES: Final = 64 << 20  # The lease is renewed whenever so many bytes were copied.
ATTEMPTS: Final = 10  # The broker may remove a table between its answer and the opening of the file.

TOKEN_VARIABLE = "DUOLOG_TOKEN"

Target = Annotated[Path, typer.Argument(metavar="DIR", help="a directory that is empty or does not exist")]
Source = Annotated[Path, typer.Argument(metavar="DIR", help="the directory of the backup")]


def backup(
    directory: Target,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="the data directory, if its path is another one here")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar=TOKEN_VARIABLE, metavar="TOKEN", help="a token of http.readers_file")
    ] = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Copy the data directory of the running broker, on the machine of the broker.

    The copy has everything that was acknowledged before the command began. Each unit of the copied log is verified.
    """
    from duolog.store.recovery.backup import BackupFailed, check_is_new

    api = writing(http)
    api.token = token
    lease = ""
    try:
        check_is_new(str(directory))
        lease, plan, sources = _open_sources(api, data)
        with progress("copying", plan.total_bytes) as note_bytes:
            sources.copy_to(str(directory), _renewing(api, lease, note_bytes))
        sources.close()
    except (BackupFailed, OSError) as error:
        raise Refused(f"no backup was made: {error}") from error
    finally:
        _release(api, lease)
    done = {"directory": str(directory), "position": plan.position, "bytes": plan.total_bytes}
    text = f"{directory} has the log up to position {plan.position}, {plan.total_bytes} bytes, verified"
    show_done(done, text, as_json=as_json)


def _open_sources(api: "Api", data: Path | None) -> tuple[str, "BackupPlan", "Sources"]:
    """Take a lease, and open the files of its plan; again with another lease if one of them was removed meanwhile."""
    from duolog.store.recovery.backup import BackupFailed, FilesChanged, Sources

    reason: object = ""
    for _ in range(ATTEMPTS):
        answer = api.act("/api/backups")
        plan = _plan_of(answer, data)
        try:
            return answer["lease"], plan, Sources(plan)
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
    from duolog.store.recovery.backup import BackupPlan, CopiedFile

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
    directory: Source,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="the new data directory; empty or not there")],
    as_json: AsJson = False,
) -> None:
    """Make a data directory of a backup; each unit of its log is verified before and after it is copied."""
    from duolog.store.recovery.backup import Backup, BackupFailed

    try:
        found = Backup(str(directory))
        with progress("restoring", found.total_bytes) as note_bytes:
            found.restore(str(data), note_bytes)
    except (BackupFailed, OSError) as error:
        raise Refused(f"nothing was restored: {error}") from error
    done = {"directory": str(data), "position": found.position, "bytes": found.total_bytes}
    text = f"{data} has the log up to position {found.position}; start the broker with --data {data}"
    show_done(done, text, as_json=as_json)
