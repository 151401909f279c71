"""The files of a serving broker's data directory, as far as they belong to a backup."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from duolog.store.backup.manifest import BackupFailed, BackupManifest, CopiedFile
from duolog.store.errors import StoreError
from duolog.store.files import ReadableFiles, ReadOnlyFiles
from duolog.store.objects.interface import ObjectStore
from duolog.store.recovery.checkpoint import snapshot_path, snapshot_positions
from duolog.store.recovery.damage import LogReport, Verification
from duolog.store.recovery.format_version import FORMAT_VERSION, format_of
from duolog.store.shared.cache.remote_files import RemoteFiles

COPY_BYTES: Final = 8 << 20  # Size of one read and write.


class FilesChanged(StoreError):
    """A file was removed before it was opened: the broker must be asked again which files are current."""


class BackupPlan(NamedTuple):
    """What to copy."""

    directory: str  # The data directory.
    position: int
    segments: Sequence[CopiedFile]  # Gap files, too; their size is 0.
    tables: Sequence[CopiedFile]


class Sources:
    """The files of a plan. Tables and snapshots, which no lease keeps, can be read after the broker has removed them.

    `copied_files` are the files of the data directory as the copy will have them.
    """

    def __init__(self, plan: BackupPlan, objects: Callable[[], ObjectStore | None] = lambda: None) -> None:
        """Open the tables and the snapshots. Raises FilesChanged and OSError.

        `objects` returns the object store that has the segments which a broker with `shared.cache_bytes` has dropped.
        """
        self._plan = plan
        self._files = RemoteFiles(plan.directory, objects)
        self._closing = ExitStack()
        self._opened: dict[str, int] = {}
        try:
            for table in plan.tables:
                self._open(table.path)
            positions = [each for each in snapshot_positions(self._files) if each <= plan.position]
            snapshots = [self._snapshot(snapshot_path(each)) for each in positions]
        except FileNotFoundError as error:
            self.close()
            raise FilesChanged(f"{error.filename} was removed") from error
        self.files: Sequence[CopiedFile] = [*plan.tables, *snapshots, *plan.segments]
        self.copied_files = CopiedFiles(self._files, self._opened, {each.path: each.size for each in self.files})

    def _open(self, path: str) -> int:
        file = self._opened[path] = self._files.open(path)
        self._closing.callback(self._files.close, file)
        return file

    def _snapshot(self, path: str) -> CopiedFile:
        return CopiedFile(path, self._files.size(self._open(path)))

    def close(self) -> None:
        self._closing.close()

    @property
    def position(self) -> int:
        return self._plan.position

    @property
    def total_bytes(self) -> int:
        return sum(each.size for each in self.files)

    def blocks(self, copied: CopiedFile) -> Iterator[bytes]:
        """Yield the content of a file. Raises BackupFailed and OSError."""
        if copied.size:  # Gap files are empty.
            yield from blocks_of(self.copied_files, copied)

    def manifest(self, checksums: Mapping[str, int]) -> BackupManifest:
        """Return the manifest of a copy of all files."""
        return BackupManifest(format_of(self._files) or FORMAT_VERSION, self.position, self.files, checksums)


class CopiedFiles:
    """ReadableFiles of a data directory that has nothing but some files, each up to a size."""

    def __init__(self, files: ReadOnlyFiles, opened: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        """`opened` has the handles of files that stay open; the others are opened by their names."""
        self._files, self._opened, self._sizes = files, opened, sizes
        self._handles: dict[int, str] = {}

    def open(self, path: str) -> int:
        if path not in self._sizes:
            raise FileNotFoundError(f"{path} is not in the copy")
        file = self._opened.get(path)
        file = self._files.open(path) if file is None else file
        self._handles[file] = path
        return file

    def close(self, file: int) -> None:
        if self._handles.pop(file) not in self._opened:
            self._files.close(file)

    def size(self, file: int) -> int:
        return min(self._files.size(file), self._sizes[self._handles[file]])

    def read(self, file: int, size: int, at: int) -> bytes:
        return self._files.read(file, max(0, min(size, self._sizes[self._handles[file]] - at)), at)

    def list(self, path: str) -> list[str]:
        return sorted(name for folder, _, name in (each.rpartition("/") for each in self._sizes) if folder == path)


def blocks_of(files: ReadableFiles, copied: CopiedFile) -> Iterator[bytes]:
    """Yield the first `copied.size` bytes of a file. Raises BackupFailed if it has fewer, and OSError."""
    file = files.open(copied.path)
    try:
        at = 0
        while at < copied.size:
            block = files.read(file, min(COPY_BYTES, copied.size - at), at)
            if not block:
                raise BackupFailed(f"{copied.path} has {at} bytes, and {copied.size} were expected")
            yield block
            at += len(block)
    finally:
        files.close(file)


def verify_log(files: ReadableFiles, position: int) -> LogReport:
    """Verify every unit of a log that must end at a position. Raises BackupFailed and OSError."""
    report = Verification(files, is_served=False, expected_end=position).run()
    if not report.is_intact:
        what = report.missing_state or f"{report.damage[0].path} at position {report.damage[0].start}"
        raise BackupFailed(f"the log is damaged: {what}; `duolog log verify` lists all places")
    if report.end != position:
        raise BackupFailed(f"the copied log ends at position {report.end}, and {position} was expected")
    return report
