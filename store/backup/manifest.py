"""The file `backup.json` of a backup: what the backup has. It is written last.

    {"format": 1, "data_format": 1, "position": position, "files": [[path, size], ...], "crc32c": {path: checksum}}

Backups of older versions may have no checksums: then only sizes, and the units of the log, are verified.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from duolog.store.errors import StoreError
from duolog.store.log.segment import LOG_DIRECTORY
from duolog.store.recovery.format_version import UnknownFormat, check_format

MANIFEST: Final = "backup.json"
FORMAT: Final = 1  # The version of the manifest.
MANIFEST_BYTES_MAX: Final = 256 << 20
DIRECTORIES: Final = (LOG_DIRECTORY, "timers")


class BackupFailed(StoreError):
    """A backup or restore cannot be done; the message says why."""


class CopiedFile(NamedTuple):
    """A file of the data directory, and how many of its first bytes belong to the copy."""

    path: str
    size: int


class BackupManifest(NamedTuple):
    """What a backup has."""

    data_format: int  # The format version of the data directory.
    position: int  # The end of the log.
    files: Sequence[CopiedFile]
    checksums: Mapping[str, int]  # CRC-32C by path.

    @property
    def total_bytes(self) -> int:
        return sum(each.size for each in self.files)


def encode_manifest(manifest: BackupManifest) -> bytes:
    return json.dumps(
        {
            "format": FORMAT,
            "data_format": manifest.data_format,
            "position": manifest.position,
            "files": manifest.files,
            "crc32c": manifest.checksums,
        }
    ).encode()


def decode_manifest(data: bytes, place: str) -> BackupManifest:
    """Read the manifest of the backup at `place`, a directory or a URL. Raises BackupFailed."""
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise BackupFailed(
                f"{place}/{MANIFEST} has format {content['format']}; this version knows {FORMAT}: restore it with the "
                "newer version that wrote it"
            )
        data_format = check_format(b"%d" % int(content["data_format"]))
        files = [CopiedFile(str(path), int(size)) for path, size in content["files"]]
        checksums = {str(path): int(crc) for path, crc in content.get("crc32c", {}).items()}
        position = int(content["position"])
    except UnknownFormat as error:
        raise BackupFailed(f"{place}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BackupFailed(f"{place}/{MANIFEST} is damaged: {_damage(data, error)}; restore another backup") from error
    for path, _ in files:
        if not is_path(path):
            raise BackupFailed(f"{place}/{MANIFEST} names {path!r}, which is no file of a backup")
    return BackupManifest(data_format, position, files, checksums)


def _damage(data: bytes, error: Exception) -> str:
    """Return what is wrong with a manifest that cannot be read."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f"it has {len(data)} bytes, which are cut off or no JSON"
    return f"it lacks a field, or has another value than a backup writes ({error})"


def is_path(path: str) -> bool:
    """Return whether a path can be that of a file of a backup."""
    parts = path.split("/")
    return len(parts) == 2 and parts[0] in DIRECTORIES and parts[1] not in ("", ".", "..")


def unfinished(place: str) -> BackupFailed:
    """Return the exception for a backup without a manifest."""
    return BackupFailed(
        f"{place} has no {MANIFEST}: it is no finished backup. If `duolog backup` was interrupted, run it again"
    )


def check_copy(manifest: BackupManifest, place: str, file: CopiedFile, size: int, crc: int) -> None:
    """Raise BackupFailed unless a file of the backup at `place` has the size and the checksum of the manifest."""
    if size != file.size:
        raise BackupFailed(f"{place}/{file.path} has {size} bytes, and {file.size} were expected")
    expected = manifest.checksums.get(file.path, crc)
    if crc != expected:
        raise BackupFailed(
            f"{place}/{file.path} is damaged: its CRC-32C is {crc:#010x}, and {expected:#010x} was expected; restore "
            "another backup"
        )
