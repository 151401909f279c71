"""The one door to the archive's files: whatever Hadoop's FileSystem reaches (a disk, HDFS, an object store).

Paths are relative to the archive's root. `write_text` puts a whole file in place or none. One process writes at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class File(NamedTuple):
    path: str
    size: int


class TableFiles(Protocol):
    """What a table asks of its storage. A test's fails at the n-th operation."""

    def list(self, folder: str) -> list[File]:
        """All files below a folder, however deep, by path; none if it does not exist."""

    def read_text(self, path: str) -> str | None:
        """The content of a file; None if it does not exist."""

    def write_text(self, path: str, text: str) -> None: ...

    def move(self, old: str, new: str) -> None:
        """Put a file in the place of another, which may exist."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder, if it exists."""


class HadoopFiles:
    """Files below a root, through the session's Hadoop configuration."""

    def __init__(self, session: SparkSession, root: str) -> None:
        jvm: Any = session._jvm
        self._jvm = jvm
        self._root = jvm.org.apache.hadoop.fs.Path(root)
        self._files: Any = self._root.getFileSystem(session._jsc.hadoopConfiguration())
        self._prefix = len(self._files.makeQualified(self._root).toString().rstrip("/")) + 1

    def list(self, folder: str) -> list[File]:
        path = self._path(folder)
        if not self._files.exists(path):
            return []
        found = []
        walk = self._files.listFiles(path, True)
        while walk.hasNext():
            status = walk.next()
            found.append(File(status.getPath().toString()[self._prefix :], int(status.getLen())))
        return sorted(found)

    def read_text(self, path: str) -> str | None:
        if not self._files.exists(self._path(path)):
            return None
        stream = self._files.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        aside = path + ".new"
        stream = self._files.create(self._path(aside), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.move(aside, path)

    def move(self, old: str, new: str) -> None:
        target = self._path(new)
        self._files.mkdirs(target.getParent())
        self._files.delete(target, False)  # Hadoop renames onto nothing.
        if not self._files.rename(self._path(old), target):
            raise OSError(f"{self._path(old)} could not be moved to {target}")

    def remove(self, path: str) -> None:
        self._files.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path) if path else self._root
