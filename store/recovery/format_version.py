"""The format version of a data directory: the file `format`, which has the number in decimal digits and a line feed.

A broker writes it before anything else into an empty directory. A directory with a newer version is refused, because
what this version would write into it, or not find in it, is unknown. The version rises when a release writes files that
the release before cannot read; each release reads all versions up to its own.
"""

from typing import Final

from duolog.store.errors import StoreError
from duolog.store.files import Files, ReadableFiles, replace
from duolog.store.log.segment import LOG_DIRECTORY

FORMAT_VERSION: Final = 1
FORMAT_PATH: Final = "format"

_SIZE_MAX: Final = 16


class UnknownFormat(StoreError):
    """The data directory has a format that this version does not read; the message says what to do."""


def format_of(files: ReadableFiles) -> int | None:
    """Return the format version of a data directory; None if it has no file `format`. Raises UnknownFormat, OSError."""
    return check_format(_read(files)) if FORMAT_PATH in files.list(".") else None


def ensure_format(files: Files) -> None:
    """Check the format version of a data directory, or write it into an empty one. Blocks.

    Raises UnknownFormat and OSError.
    """
    if format_of(files) is not None:
        return
    if LOG_DIRECTORY in files.list("."):
        raise UnknownFormat(
            f"it has {LOG_DIRECTORY}/ and no file '{FORMAT_PATH}'. If somebody copied the files of a broker of this "
            f"version, copy '{FORMAT_PATH}' as well; directories of versions before 0.1.0 cannot be used"
        )
    write_format(files)


def check_format(content: bytes) -> int:
    """Check the content of the file `format`, and return the version. Raises UnknownFormat."""
    text = content.decode("latin-1").removesuffix("\n")
    if not text.isdecimal() or len(content) > _SIZE_MAX:
        raise UnknownFormat(
            f"its file '{FORMAT_PATH}' is damaged, {content[:_SIZE_MAX]!r}; this version writes '{FORMAT_VERSION}'"
        )
    if int(text) > FORMAT_VERSION:
        raise UnknownFormat(
            f"it has format {text}, and this version of Duolog reads formats up to {FORMAT_VERSION}. Start the newer "
            "version of Duolog that wrote it, or restore a backup that was made before the upgrade"
        )
    return int(text)


def write_format(files: Files, version: int = FORMAT_VERSION) -> None:
    """Write a version, durably. Raises OSError."""
    replace(files, FORMAT_PATH, b"%d\n" % version)


def _read(files: ReadableFiles) -> bytes:
    handle = files.open(FORMAT_PATH)
    try:
        return files.read(handle, _SIZE_MAX + 1, 0)
    finally:
        files.close(handle)
