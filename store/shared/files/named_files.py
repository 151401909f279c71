"""The class NamedFiles: stores files of the data directory that the log names as objects of the stream.

    <path of the file>/<byte in 20 digits>      a piece of the file; all but the last one have PIECE_BYTES

The owner uploads a file before the log names it, and deletes its objects only after the store has a log that no longer
names it. A path is used once in a stream: a file never changes, and no other file ever gets its path. So an existing
object has the right content, whichever broker has created it, and the log never names the uploads of a deposed owner.

This module does not know the content of these files. The caller verifies downloaded files.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

from duolog.store.files import Files, ReadableFiles
from duolog.store.objects.interface import LIST_LIMIT
from duolog.store.objects.transfers import read_ahead
from duolog.store.shared.requests import Requests
from duolog.store.shared.wal.wal_object import damaged

PIECE_BYTES: Final = 16 << 20  # A part of the format, because the keys of pieces follow from the size of a file.
DELETED_AT_ONCE: Final = 1_000  # The number of keys in one request.
_PARTIAL: Final = "download-"  # The prefix of the name of an incomplete download.


class FilePiece(NamedTuple):
    key: str
    start: int
    size: int


def pieces_of(path: str, size: int) -> Iterator[FilePiece]:
    """Yield the objects of a file."""
    for start in range(0, size, PIECE_BYTES):
        yield FilePiece(_key_of(path, start), start, min(PIECE_BYTES, size - start))


def _key_of(path: str, start: int) -> str:
    return f"{path}/{start:020}"


def read_piece(files: ReadableFiles, path: str, piece: FilePiece) -> bytes:
    """Return the bytes of a piece. Blocks; raises OSError."""
    file = files.open(path)
    try:
        return files.read(file, piece.size, piece.start)
    finally:
        files.close(file)


class NamedFiles:
    """Uploads and downloads files of one data directory. `name` must differ from that of any other process."""

    def __init__(self, requests: Requests, files: Files, name: str) -> None:
        self._requests, self._files, self._name = requests, files, name

    async def upload(self, path: str, size: int) -> None:
        """Create the objects of a file. Raises DamagedObject, RequestsStopped and OSError."""
        for piece in pieces_of(path, size):
            content = await asyncio.to_thread(read_piece, self._files, path, piece)
            while not await self._requests.create(piece.key, content):
                found = await self._requests.get(piece.key)
                if found == content:
                    break
                if found is not None:
                    raise damaged(piece.key, "it has another content than the file of this name")

    async def download(self, path: str, size: int) -> FilePiece | None:
        """Write a file, replacing one with its path. Return the first missing or short piece; None if there is none.

        Some pieces are read ahead (`read_ahead`), because a takeover may wait for the file. The file gets its path when
        it is complete and durable. Raises RequestsStopped and OSError.
        """
        folder = path.rpartition("/")[0]
        partial = f"{folder}/{_PARTIAL}{self._name}"
        self._files.make_directory(folder)
        self._remove(partial)
        file, pieces = self._files.open(partial, create=True), iter(pieces_of(path, size))
        try:
            read = read_ahead(lambda at, _: self._requests.get(_key_of(path, at)), 0, size, PIECE_BYTES)
            async with aclosing(read) as contents:
                async for content in contents:
                    piece = next(pieces)
                    if len(content) != piece.size:
                        return piece
                    await asyncio.to_thread(self._files.write, file, [content], piece.start)
            if (missing := next(pieces, None)) is not None:
                return missing
            await asyncio.to_thread(self._files.sync, file)
        finally:
            self._files.close(file)
        self._files.rename(partial, path)
        self._files.sync_directory(folder)
        return None

    async def delete(self, files: Iterable[tuple[str, int]]) -> None:
        """Delete the objects of files. Raises RequestsStopped."""
        await self._delete([piece.key for path, size in files for piece in pieces_of(path, size)])

    async def delete_others(self, folder: str, is_needed: Callable[[str], bool]) -> None:
        """Delete the objects of the files in a folder whose paths are not needed. Raises RequestsStopped.

        A list may be stale. Then some objects remain until the next call.
        """
        last = ""
        while listed := await self._requests.list(f"{folder}/", last):
            await self._delete([each.key for each in listed if not is_needed(each.key.rpartition("/")[0])])
            last = listed[-1].key
            if len(listed) < LIST_LIMIT:
                break

    async def _delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), DELETED_AT_ONCE):
            await self._requests.delete(keys[first : first + DELETED_AT_ONCE])

    def remove_partial(self, folder: str) -> None:
        """Remove the files of interrupted downloads. Raises OSError."""
        for name in self._files.list(folder):
            if name.startswith(_PARTIAL):
                self._remove(f"{folder}/{name}")

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.remove(path)
