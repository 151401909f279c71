"""The check that the log of a data directory is not a copy of a stream. A copy has the file `shared`.

A broker without an object store makes this check at its start. Of `store/shared/` it loads only this module,
`cache/local_segments.py` and `segments/local_ranges.py`, through which the store knows its own segments.
"""

from typing import Final

from duolog.store.errors import StoreError
from duolog.store.files import Files

PATH: Final = "shared"  # `copy_state.py` has its format.


class CopyOfStream(StoreError):
    """The log of the data directory is a copy of a stream, but a broker without an object store is to open it."""


def check_no_copy(files: Files) -> None:
    """Refuse a data directory whose log is a copy of a stream. Raises CopyOfStream and OSError.

    What a broker appended here would not be in the stream, and the next start with it would take it for its own.
    """
    if PATH in files.list("."):
        raise CopyOfStream(
            "its log is the copy of a shared log, which another broker may have continued: start it with --shared and "
            f"the URL of that log. To make the copy a log of its own for good, remove the file '{PATH}'; if log/ has "
            "*.remote files, which name segments that only the object store has, use duolog move instead"
        )
