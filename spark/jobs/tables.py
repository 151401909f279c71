"""The table of an archive: Parquet files with a log of commits, a Delta table, or an Iceberg table.

The files of a Parquet table:

    <root>/topic=orders/date=2026-11-21/batch-00000007-0000.parquet      rows of one batch, topic and date
    <root>/topic=orders/date=2026-11-21/merged-00000012-0000.parquet     rows of several small files
    <root>/_duolog/log/00000012.json                                     commits: the newest snapshot and later ones
    <root>/_duolog/staging/                                              files that are being written
    <root>/_duolog/checkpoint/                                           the checkpoint of Spark's streaming query

A commit is one file, which is renamed to its final name. Instead of "add" and "remove", a snapshot has "files", the
list of all files of the table:

    {"query": id, "batch": 7, "add": [path, ...], "remove": [path, ...]}

A batch is in the table exactly once: `append` does nothing if a commit has the number of the batch, and the files of a
batch that was interrupted are overwritten, because their names contain its number.

Readers of Parquet ignore names that begin with `_`, so `spark.read.parquet(root)` also reads the table. While a batch
is moved into the table or small files are merged, such a reader may see a part of it. `read` uses the log and always
returns whole batches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

from duolog.spark.files import File, TableFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PARTITIONED_BY: Final = ("topic", "date")
LOG: Final = "_duolog/log"
STAGING: Final = "_duolog/staging"
SMALL_FILES_MAX: Final = 16  # Small files of one topic and date; if there are more, they are merged.
FILE_BYTES: Final = 128 << 20  # The size of a merged file. A file of less than half of it is small.
FORMATS: Final = ("parquet", "delta", "iceberg")


class TableError(Exception):
    """The table cannot be used by the job; the message says what to do."""


class Table(Protocol):
    """The table of an archive."""

    def append(self, batch: DataFrame, query: str, batch_id: int) -> None:
        """Add the rows of a batch of a query, unless the table has this batch already."""

    def read(self, without: Collection[str] = ()) -> DataFrame:
        """Return all rows, except those of the files in `without`. Raises TableError if there is no table."""

    def lost(self) -> list[str]:
        """Return the files of the table that do not exist any more."""

    def compact(self) -> int:
        """Merge small files; return how many fewer files there are, or for Delta and Iceberg how many were replaced."""


# -- Parquet


class ParquetTable:
    """Parquet files and a log of commits. A writer must call `clear_away` before it appends."""

    def __init__(
        self, session: SparkSession, root: str, files: TableFiles, schema: StructType, *, file_bytes: int = FILE_BYTES
    ) -> None:
        self._session, self._root, self._files, self._schema = session, root.rstrip("/"), files, schema
        self._file_bytes = file_bytes
        self._query, self._batch, self._live = "", -1, set[str]()
        self._next_commit = 0
        self._replay()

    def _replay(self) -> None:
        """Read the log: set the files of the table and the last batch."""
        for number, commit in self._commits():
            self._next_commit = number + 1
            if "files" in commit:
                self._live = set(commit["files"])
            self._live |= set(commit.get("add", ()))
            self._live -= set(commit.get("remove", ()))
            self._query, self._batch = commit["query"], commit["batch"]

    def _commits(self) -> Iterable[tuple[int, dict[str, Any]]]:
        numbers = sorted(
            int(name) for name in (file.path.rpartition("/")[2].removesuffix(".json") for file in self._files.list(LOG))
            if name.isdecimal()
        )  # fmt: skip
        for number in numbers:
            yield number, json.loads(self._files.read_text(f"{LOG}/{number:08}.json") or "")

    def clear_away(self) -> int:
        """Remove the data files that an interrupted run has left; return their number. Only the writer may call it."""
        self._files.remove(STAGING)
        dead = [file.path for file in self._files.list("") if _is_data(file.path) and file.path not in self._live]
        for path in dead:
            self._files.remove(path)
        return len(dead)

    def append(self, batch: DataFrame, query: str, batch_id: int) -> None:
        if self._query and query != self._query:
            raise TableError(
                f"{self._root} was filled by query {self._query}, and this is {query}: the checkpoint is not the one "
                "that belongs to this archive. Restore the checkpoint of the archive, or begin another archive"
            )
        if batch_id <= self._batch:
            return
        added = self._write(batch, f"batch-{batch_id:08}")
        self._commit(query, batch_id, add=added)

    def _write(self, rows: DataFrame, name: str) -> list[str]:
        """Write rows to files with this name in the staging folder, then move them to their topics and dates."""
        self._files.remove(STAGING)
        rows.write.partitionBy(*PARTITIONED_BY).parquet(f"{self._root}/{STAGING}")
        moved: list[str] = []
        for file in self._files.list(STAGING):
            folder, _, file_name = file.path.removeprefix(f"{STAGING}/").rpartition("/")
            if file_name.endswith(".parquet"):
                path = f"{folder}/{name}-{len(moved):04}.parquet"
                self._files.move(file.path, path)
                moved.append(path)
        self._files.remove(STAGING)
        return moved

    def _commit(self, query: str, batch_id: int, *, add: Sequence[str], remove: Sequence[str] = ()) -> None:
        live = self._live - set(remove) | set(add)
        number = self._next_commit
        commit: dict[str, Any] = {"query": query, "batch": batch_id}
        # A commit that removes files is written as a snapshot, so that older commits can be removed.
        commit |= {"files": sorted(live)} if remove else {"add": list(add)}
        self._files.write_text(f"{LOG}/{number:08}.json", json.dumps(commit))
        self._query, self._batch, self._live, self._next_commit = query, batch_id, live, number + 1

    def lost(self) -> list[str]:
        return sorted(self._live - {file.path for file in self._files.list("")})

    def read(self, without: Collection[str] = ()) -> DataFrame:
        if not self._next_commit:
            raise TableError(f"there is no archive in {self._root}")
        paths = [f"{self._root}/{path}" for path in sorted(self._live.difference(without))]
        if not paths:
            return self._session.createDataFrame([], self._schema)
        return self._session.read.schema(self._schema).option("basePath", self._root).parquet(*paths)

    def compact(self, small_files_max: int = SMALL_FILES_MAX) -> int:
        """Merge the small files of each topic and date that has more than `small_files_max` of them."""
        removed = 0
        for small in self._small_files(small_files_max):
            removed += self._merge(small)
        if removed:
            self._forget_old_commits()
        return removed

    def _small_files(self, small_files_max: int) -> list[list[File]]:
        folders: dict[str, list[File]] = {}
        for file in self._files.list(""):
            if file.path in self._live and file.size < self._file_bytes // 2:
                folders.setdefault(file.path.rpartition("/")[0], []).append(file)
        return [files for files in folders.values() if len(files) > small_files_max]

    def _merge(self, small: list[File]) -> int:
        """Replace the small files of one folder: move new files into it, commit, then remove the old files."""
        paths = [f"{self._root}/{file.path}" for file in small]
        rows = self._session.read.schema(self._schema).option("basePath", self._root).parquet(*paths)
        count = max(1, math.ceil(sum(file.size for file in small) / self._file_bytes))
        ordered = rows.repartitionByRange(count, "queue", "offset").sortWithinPartitions("queue", "offset")
        old = [file.path for file in small]
        added = self._write(ordered, f"merged-{self._next_commit:08}")
        self._commit(self._query, self._batch, add=added, remove=old)
        for path in old:
            self._files.remove(path)
        return len(old) - len(added)

    def _forget_old_commits(self) -> None:
        """Remove all commits before the newest one, which is a snapshot."""
        for file in self._files.list(LOG):
            if file.path != f"{LOG}/{self._next_commit - 1:08}.json":
                self._files.remove(file.path)


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not path.startswith(("_", "."))


# -- Delta and Iceberg

DELTA_MODULE: Final = "io.delta.sql.DeltaSparkSessionExtension"
ICEBERG_MODULE: Final = "org.apache.iceberg.spark.SparkCatalog"
_CATALOG: Final = "duolog_archive"


class DeltaTable:
    """A Delta table. Delta itself skips a batch that the table has already."""

    def __init__(self, session: SparkSession, root: str) -> None:
        self._session, self._root = session, root

    def append(self, batch: DataFrame, query: str, batch_id: int) -> None:
        writer = batch.write.format("delta").mode("append").partitionBy(*PARTITIONED_BY)
        writer.option("txnAppId", query).option("txnVersion", batch_id).save(self._root)

    def lost(self) -> list[str]:
        return _not_there(self._session, map(unquote, self.read().inputFiles()))  # `inputFiles` returns URIs.

    def read(self, without: Collection[str] = ()) -> DataFrame:
        if without:  # Delta cannot read a list of files.
            self._session.conf.set("spark.sql.files.ignoreMissingFiles", "true")
        return self._session.read.format("delta").load(self._root)

    def compact(self) -> int:
        found = self._session.sql(f"OPTIMIZE delta.`{self._root}`").selectExpr("metrics.numFilesRemoved as n").first()
        return int(found.n) if found else 0


class IcebergTable:
    """An Iceberg table in a separate catalog. Each snapshot has the number of its batch as a property."""

    def __init__(self, session: SparkSession, root: str) -> None:
        self._session, self._name = session, f"{_CATALOG}.archive"
        session.conf.set(f"spark.sql.catalog.{_CATALOG}", ICEBERG_MODULE)
        session.conf.set(f"spark.sql.catalog.{_CATALOG}.type", "hadoop")
        session.conf.set(f"spark.sql.catalog.{_CATALOG}.warehouse", root)

    def append(self, batch: DataFrame, query: str, batch_id: int) -> None:
        mark = {"snapshot-property.duolog-query": query, "snapshot-property.duolog-batch": str(batch_id)}
        rows = batch.sortWithinPartitions(*PARTITIONED_BY)  # Iceberg's writers hold one partition open at a time.
        if not self._session.catalog.tableExists(self._name):
            rows.writeTo(self._name).options(**mark).partitionedBy(*PARTITIONED_BY).create()
        elif self._last_batch(query) < batch_id:
            rows.writeTo(self._name).options(**mark).append()

    def _last_batch(self, query: str) -> int:
        snapshots = self._session.table(f"{self._name}.snapshots")
        found = snapshots.selectExpr(
            "summary['duolog-query'] as query", "cast(summary['duolog-batch'] as bigint) as batch"
        )
        last = found.where(found.query == query).selectExpr("max(batch) as last").first()
        return -1 if last is None or last.last is None else int(last.last)

    def lost(self) -> list[str]:
        return _not_there(self._session, self._paths())

    def read(self, without: Collection[str] = ()) -> DataFrame:
        rows = self._session.table(self._name)
        if not without:
            return rows
        # Iceberg cannot read a list of files. They are Parquet files that also contain the partition columns.
        kept = sorted(self._paths() - set(without))
        return self._session.read.schema(rows.schema).parquet(*kept) if kept else rows.limit(0)

    def _paths(self) -> set[str]:
        return {row.file_path for row in self._session.table(f"{self._name}.files").select("file_path").collect()}

    def compact(self) -> int:
        rewritten = self._session.sql(f"CALL {_CATALOG}.system.rewrite_data_files(table => 'archive')").first()
        return int(rewritten.rewritten_data_files_count) if rewritten else 0


def _not_there(session: SparkSession, paths: Iterable[str]) -> list[str]:
    jvm: Any = session._jvm
    configuration = session._jsc.hadoopConfiguration()
    found = []
    for path in paths:
        file = jvm.org.apache.hadoop.fs.Path(path)
        if not file.getFileSystem(configuration).exists(file):
            found.append(path)
    return sorted(found)
