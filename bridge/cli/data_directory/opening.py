"""What the commands that read a data directory or a bucket share: options, the lock, the store, progress."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duolog.bridge.cli.common import BadOption, Refused

if TYPE_CHECKING:
    from duolog.store.files import ReadOnlyFiles, RealFiles
    from duolog.store.objects.remote import RemoteObjects

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="the data directory")]


@contextmanager
def reading_files(data: Path) -> Iterator[tuple["ReadOnlyFiles", bool]]:
    """Open a data directory for reading; yield its files, and whether a broker is using it.

    If no broker uses it, none can start until the block ends. Raises BadOption.
    """
    from duolog.store.files import LOCK_PATH, ReadOnlyFiles

    check_is_data(data)
    files = ReadOnlyFiles(str(data))
    try:
        lock = files.lock_shared(LOCK_PATH)
    except BlockingIOError:
        yield files, True
        return
    except FileNotFoundError:  # A copy of a data directory may have been made without the lock.
        yield files, False
        return
    try:
        yield files, False
    finally:
        files.close(lock)


@contextmanager
def changing_files(data: Path) -> Iterator["RealFiles"]:
    """Open a data directory that no broker may use until the block ends. Raises BadOption and Refused."""
    from duolog.store.files import LOCK_PATH, RealFiles

    check_is_data(data)
    files = RealFiles(str(data))
    try:
        lock = files.lock(LOCK_PATH)
    except BlockingIOError as error:
        raise Refused(f"--data {data}: a broker is using the directory; stop it first") from error
    try:
        yield files
    finally:
        files.close(lock)


def check_is_data(data: Path) -> None:
    """Raise BadOption unless this is a data directory whose format this version reads; a copy may lack the number."""
    from duolog.store.files import ReadOnlyFiles
    from duolog.store.log.segment import LOG_DIRECTORY
    from duolog.store.recovery.format_version import UnknownFormat, format_of

    if not (data / LOG_DIRECTORY).is_dir():
        raise BadOption(f"--data {data}: not a data directory, because it has no directory {LOG_DIRECTORY}/")
    try:
        format_of(ReadOnlyFiles(str(data)))
    except UnknownFormat as error:
        raise BadOption(f"--data {data}: {error}") from error


def is_url(place: str) -> bool:
    """Return whether a place is the URL of an object store; all others are directories.

    Raises BadOption if the place begins as a URL does, with a slash too few.
    """
    if re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", place):
        raise BadOption(f"{place}: a URL has two slashes after the colon, such as s3://bucket/prefix")
    return "://" in place


def open_bucket(url: str, config: Path | None, overrides: list[str] | None) -> "RemoteObjects":
    """Open the object store of a URL, with the settings of the section `shared`. Raises BadOption."""
    from duolog.bridge.config import ConfigError, load_with_sources, parse_override
    from duolog.store.objects.errors import StoreRefused
    from duolog.store.objects.opening import open_objects
    from duolog.store.objects.options import ObjectStoreOptions

    try:
        shared = load_with_sources(config, dict(map(parse_override, overrides or [])), os.environ).options.shared
        return open_objects(
            ObjectStoreOptions(
                url, shared.endpoint, shared.region, shared.connect_timeout_ms, shared.request_timeout_ms
            )
        )
    except (ConfigError, StoreRefused) as error:
        raise BadOption(str(error)) from error


def open_stream(config: Path | None, overrides: list[str] | None) -> "RemoteObjects | None":
    """Open the object store of the setting `shared.url`; return None if it is empty. Raises BadOption."""
    from duolog.bridge.config import ConfigError, load_with_sources, parse_override

    try:
        url = load_with_sources(config, dict(map(parse_override, overrides or [])), os.environ).options.shared.url
    except ConfigError as error:
        raise BadOption(str(error)) from error
    return open_bucket(url, config, overrides) if url else None


@contextmanager
def progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal's standard error; yield the function that adds bytes to it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with typer.progressbar(length=total_bytes, label=label, file=sys.stderr) as bar:
        yield bar.update
