"""The files of an archive, through Hadoop's FileSystem: on a disk, in HDFS or in an object store.

Paths are relative to the root of the archive. Only one process may write to an archive at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class File(NamedTuple):
    path: str
    size: int


class TableFiles(Protocol):
    """The file operations that tables use. Tests replace them by operations that fail."""

    def list(self, folder: str) -> list[File]:
        """Return all files below a folder and its subfolders, sorted by path; none if the folder does not exist."""

    def read_text(self, path: str) -> str | None:
        """Return the content of a file; None if it does not exist."""

    def write_text(self, path: str, text: str) -> None:
        """Write a whole file. After an error, the file is not there or has its old content."""

    def move(self, old: str, new: str) -> None:
        """Rename a file to `new`, and replace the file of that name if it exists."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder, if it exists."""


class HadoopFiles:
    """The files below a root, through the Hadoop configuration of a Spark session."""

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
        self._files.delete(target, False)  # Hadoop does not rename to the name of an existing file.
        if not self._files.rename(self._path(old), target):
            raise OSError(f"{self._path(old)} could not be moved to {target}")

    def remove(self, path: str) -> None:
        self._files.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path) if path else self._root
