"""The class RemoteFiles: a data directory, with its dropped segments, for programs other than the broker."""

from collections.abc import Callable
from itertools import count

from duolog.store.errors import StoreError
from duolog.store.files import ReadOnlyFiles, read_whole
from duolog.store.log.segment import LOG_DIRECTORY, REMOTE_SUFFIX
from duolog.store.objects.interface import ObjectStore
from duolog.store.shared.cache.chunk_requests import wait_for_chunk
from duolog.store.shared.cache.remote_segment import RemoteChunk, RemoteSegment, decode_drop_marker


class RemoteFiles(ReadOnlyFiles):
    """ReadableFiles in which a dropped segment is read like any other one. Its handles are negative.

    The last chunk is kept in memory, so a sequential reader sends one request for each chunk.
    """

    def __init__(self, root: str, objects: Callable[[], ObjectStore | None]) -> None:
        """`objects` returns the object store of the stream; None if it is not known."""
        super().__init__(root)
        self._open_objects = objects
        self._opened_objects: ObjectStore | None = None
        self._segments: dict[int, RemoteSegment] = {}
        self._numbers = count(2)
        self._last: tuple[RemoteChunk, bytes] | None = None

    def open(self, path: str) -> int:
        """Open a file. Raises Corruption, OSError, and StoreError for a dropped segment without an object store."""
        try:
            return super().open(path)
        except FileNotFoundError:
            folder, _, name = path.rpartition("/")
            stem = name.removesuffix(".log")
            names = self.list(folder)
            markers = [each for each in names if each.startswith(f"{stem}-") and each.endswith(REMOTE_SUFFIX)]
            if folder != LOG_DIRECTORY or not markers:
                raise
        marker = f"{folder}/{markers[0]}"
        if self._objects is None:
            raise StoreError(f"{path} is in the object store only: add --set shared.url=URL, with the broker's URL")
        handle = -next(self._numbers)
        self._segments[handle] = decode_drop_marker(marker, read_whole(self, marker))
        return handle

    def close(self, file: int) -> None:
        if file >= 0:
            super().close(file)
        else:
            del self._segments[file]

    def size(self, file: int) -> int:
        if file >= 0:
            return super().size(file)
        segment = self._segments[file]
        return segment.end - segment.start

    def read(self, file: int, size: int, at: int) -> bytes:
        """Read from a file. Raises StoreError and OSError."""
        if file >= 0:
            return super().read(file, size, at)
        return self._segments[file].read(at, size, self._read_chunk)

    @property
    def _objects(self) -> ObjectStore | None:
        """The object store, which is opened at the first use."""
        if self._opened_objects is None:
            self._opened_objects = self._open_objects()
        return self._opened_objects

    def _read_chunk(self, chunk: RemoteChunk, size: int, at: int) -> bytes:
        if self._last is None or self._last[0] != chunk:
            assert self._objects is not None, "no segment was opened without it"
            self._last = chunk, wait_for_chunk(self._objects, chunk)
        return self._last[1][at : at + size]
