"""The class CachedFiles: the Files of a broker that shares its log, in which dropped segments look like any others.

A dropped segment (`remote_segment.py`) has a drop marker instead of its file. `list` returns the name of the file,
`open` returns a handle below -1, and the bytes come from the RangeCache. So recovery, comparisons at a start, searches
and reads of clients treat all segments alike; only `read_on_disk`, which reads of clients use, does not wait for the
store.

    put_drop_marker   the drop marker is durable; reads still use the file of the segment
    drop              new handles read from the store; existing handles of the file remain valid
    remove_file       the file is removed
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Final

from duolog.store.entry import Buffer
from duolog.store.errors import StoreError
from duolog.store.files import Files, NotOnDisk, read_whole, write_new
from duolog.store.log.segment import LOG_DIRECTORY, REMOTE_SUFFIX, Segment
from duolog.store.objects.interface import ObjectStore
from duolog.store.shared.cache.range_cache import RangeCache
from duolog.store.shared.cache.remote_segment import RemoteChunk, RemoteSegment, decode_drop_marker, encode_drop_marker
from duolog.store.shared.cache.windows import WINDOW_MIN

NEW_SUFFIX: Final = ".new"  # The suffix of a drop marker while it is written.


class CachedFiles:
    """The files of a data directory. Handles of dropped segments are negative.

    The class has more than 20 methods because it implements Files, and each method decides whether a file is local or
    dropped.
    """

    def __init__(self, files: Files, objects: ObjectStore, cache_bytes_max: int) -> None:
        """Read the markers, and complete drops that were interrupted. Blocks; raises Corruption and OSError."""
        self.cache = RangeCache(files, objects, cache_bytes_max)
        self._files = files
        self._remote: dict[str, RemoteSegment] = {}  # By the path that the segment had.
        self._marked: dict[str, RemoteSegment] = {}  # By path, too: those whose file is still the one that is read.
        self._handles: dict[int, RemoteSegment] = {}
        self._numbers = count(2)
        names = files.list(LOG_DIRECTORY)
        for name in names:
            if name.endswith(REMOTE_SUFFIX + NEW_SUFFIX):
                files.remove(f"{LOG_DIRECTORY}/{name}")
            elif name.endswith(REMOTE_SUFFIX):
                path = f"{LOG_DIRECTORY}/{name}"
                found = decode_drop_marker(path, read_whole(files, path))
                self._remote[found.path] = found
                if _name(found.path) in names:
                    self.remove_file(found.path)

    def is_remote(self, path: str) -> bool:
        """Return whether this is the path of a dropped segment."""
        return path in self._remote

    # -- Dropping

    def put_drop_marker(self, segment: RemoteSegment) -> None:
        """Write the drop marker of a segment durably. Blocks; raises OSError."""
        self._marked[segment.path] = segment
        new = segment.drop_marker_path + NEW_SUFFIX
        if _name(new) in self._files.list(LOG_DIRECTORY):
            self._files.remove(new)
        write_new(self._files, new, encode_drop_marker(segment))
        self._files.rename(new, segment.drop_marker_path)
        self._files.sync_directory(LOG_DIRECTORY)

    def remove_drop_marker(self, segment: RemoteSegment) -> None:
        """Undo `put_drop_marker`. Blocks; raises OSError."""
        with suppress(FileNotFoundError):  # Retention has removed the segment meanwhile, and the drop marker with it.
            self._files.remove(segment.drop_marker_path)
        self._files.sync_directory(LOG_DIRECTORY)
        self._marked.pop(segment.path, None)

    def drop(self, segment: RemoteSegment) -> None:
        """Read the segment from the object store from now on."""
        self._remote[segment.path] = segment
        self._marked.pop(segment.path, None)

    def remove_file(self, path: str) -> None:
        """Remove the file of a dropped segment. Blocks; raises OSError."""
        with suppress(FileNotFoundError):  # Retention has removed the segment meanwhile.
            self._files.remove(path)
            self._files.sync_directory(LOG_DIRECTORY)

    # -- Files: handles

    def open(self, path: str, *, create: bool = False) -> int:
        segment = self._remote.get(path)
        if segment is None:
            return self._files.open(path, create=create)
        if create:
            raise FileExistsError(f"{path} is in the object store")
        handle = -next(self._numbers)
        self._handles[handle] = segment
        return handle

    def close(self, file: int) -> None:
        if file >= 0:
            self._files.close(file)
        else:
            del self._handles[file]

    # -- Files: bytes

    def read(self, file: int, size: int, at: int) -> bytes:
        """Read; waits for the object store, and then raises StoreError, too."""
        if file >= 0:
            return self._files.read(file, size, at)
        return self._handles[file].read(at, size, self.cache.fetched)

    def read_on_disk(self, file: int, size: int, at: int) -> Buffer:
        if file >= 0:
            return self._files.read_on_disk(file, size, at)
        segment = self._handles[file]

        def read(chunk: RemoteChunk, size_here: int, at_here: int) -> bytes:
            found = self.cache.read(chunk, size_here, at_here)
            if found is None:
                raise NotOnDisk(self._range(segment, at, size))
            window = self.cache.next_window(chunk)
            if window:
                self.cache.ask_ahead(self._after(segment, chunk, window), window)
            return found

        return segment.read(at, size, read)

    def _range(self, segment: RemoteSegment, at: int, size: int) -> "_Range":
        chunks = segment.between(segment.start + at, min(segment.start + at + size, segment.end))
        before = segment.before(chunks[0])
        is_sequential = before is None or before in self.cache
        return _Range(self.cache, chunks, self._after(segment, chunks[-1], WINDOW_MIN) if is_sequential else ())

    def _after(self, segment: RemoteSegment, chunk: RemoteChunk, count: int) -> Sequence[RemoteChunk]:
        """Return the next chunks, in dropped segments, after one of a segment."""
        found = [*segment.after(chunk, count)]
        following = self._remote.get(Segment(segment.end).path)
        while following is not None and len(found) < count:
            found += following.chunks[: count - len(found)]
            following = self._remote.get(Segment(following.end).path)
        return found

    def read_cached(self, file: int, size: int, at: int) -> Buffer | None:
        return self._files.read_cached(file, size, at) if file >= 0 else None

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        self._files.write(self._on_disk(file), buffers, at)

    def sync(self, file: int) -> None:
        self._files.sync(self._on_disk(file))

    def size(self, file: int) -> int:
        if file >= 0:
            return self._files.size(file)
        segment = self._handles[file]
        return segment.end - segment.start

    def truncate(self, file: int, size: int) -> None:
        self._files.truncate(self._on_disk(file), size)

    def reserve(self, file: int, size: int) -> None:
        self._files.reserve(self._on_disk(file), size)

    def _on_disk(self, file: int) -> int:
        """Return the handle of a file that can be changed. Raises StoreError if it is that of a dropped segment."""
        if file < 0:
            raise StoreError(f"{self._handles[file].path} cannot be changed, because it is in the object store")
        return file

    # -- Files: names

    def list(self, path: str) -> list[str]:
        names = self._files.list(path)
        if path != LOG_DIRECTORY or not self._remote:
            return names
        remote = [*self._remote.values()]
        hidden = {_name(each.drop_marker_path) for each in remote}
        return sorted({*names, *(_name(each.path) for each in remote)} - hidden)

    def remove(self, path: str) -> None:
        """Remove a file. That of a segment is removed with its drop marker, also while the segment is being dropped.

        The drop marker is removed last, and before the directory is synced, because a drop marker that outlives the
        next segment would mean that this one was lost.
        """
        segment = self._remote.get(path) or self._marked.get(path)
        if segment is None:
            self._files.remove(path)
            return
        for each in (path, segment.drop_marker_path):
            with suppress(FileNotFoundError):  # The drop was interrupted, or is not complete.
                self._files.remove(each)
        self._remote.pop(path, None)
        self._marked.pop(path, None)
        self.cache.forget(segment.chunks)

    def rename(self, old: str, new: str) -> None:
        self._files.rename(old, new)

    def remove_directory(self, path: str) -> None:
        self._files.remove_directory(path)

    def make_directory(self, path: str) -> None:
        self._files.make_directory(path)

    def sync_directory(self, path: str) -> None:
        self._files.sync_directory(path)

    def lock(self, path: str) -> int:
        return self._files.lock(path)

    def usage(self) -> tuple[int, int]:
        return self._files.usage()


class _Range:
    """Chunks that a read lacks, and those that are read ahead."""

    def __init__(self, cache: RangeCache, chunks: Sequence[RemoteChunk], ahead: Sequence[RemoteChunk]) -> None:
        self._cache, self._chunks, self._ahead = cache, chunks, ahead

    def fetch(self, done: Callable[[StoreError | OSError | None], None]) -> None:
        self._cache.want(self._chunks)
        self._cache.fetch(self._chunks, done)
        self._cache.ask_ahead(self._ahead, WINDOW_MIN)

    def release(self) -> None:
        self._cache.release(self._chunks)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
