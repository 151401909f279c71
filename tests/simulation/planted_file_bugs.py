"""Bugs of what is beside the log: objects that nobody reads, and tables of delayed messages; see `planted_bugs.py`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from duolog.bridge.cluster.stream_tables import StreamTables
from duolog.delay.tables.table_format import TableFile, files_of
from duolog.delay.tables.tables import Tables
from duolog.delay.tables.tombstones import TombstoneRow
from duolog.delay.tree.jobs import Context, ManifestChange, log_failure
from duolog.store.shared.replica import Replica
from duolog.store.shared.segments import orphans
from duolog.store.shared.segments.orphans import Orphans
from duolog.store.workers import Failure
from tests.simulation.replacing import Replacement, always, by_name

# -- Objects that nobody reads


def orphans_deleted_during_a_compaction() -> list[Replacement]:
    """A segment object goes that a manifest is about to name."""
    right = Replica._compact

    async def compact(self: Replica, work: Callable[[], Awaitable[None]]) -> None:
        async def both() -> None:
            await asyncio.gather(self._compactor.run(), self._orphans.delete())

        await right(self, both)

    def segment_start(key: str) -> int:
        return -1  # As if each began below the floor.

    return [(Replica, "_compact", compact), (orphans, "segment_start", segment_start)]


def fence_taken_for_an_orphan() -> list[Replacement]:
    return always(Orphans, "_is_no_fence", value=True)


def slots_above_the_floor_taken_for_orphans() -> list[Replacement]:
    right = orphans._is_below
    return [(orphans, "_is_below", lambda number, limit: right(number, limit + 8))]


# -- Tables of delayed messages


def table_named_before_it_is_uploaded() -> list[Replacement]:
    def copy(self: StreamTables, files: Sequence[TableFile], done: Callable[[Failure | None], None]) -> None:
        asyncio.get_running_loop().call_soon(done, None)
        self._begin(self._upload(files, log_failure))

    return [(StreamTables, "copy", copy)]


def table_deleted_before_a_manifest_without_it_counts() -> list[Replacement]:
    right = Context.commit

    def commit(self: Context, change: ManifestChange) -> None:
        before, kept = self.tables.manifest, {*change.manifest}
        right(self, change)
        self.table_copies.remove([file for entry in before if entry not in kept for file in files_of(entry)])

    return [(Context, "commit", commit)]


def new_tables_taken_for_those_of_earlier_owners() -> list[Replacement]:
    right = StreamTables._delete_unnamed

    async def delete_unnamed(self: StreamTables, first: int, named: set[str]) -> None:
        await right(self, 1 << 64, named)

    return [(StreamTables, "_delete_unnamed", delete_unnamed)]


def tables_not_looked_for_at_a_takeover() -> list[Replacement]:
    return always(StreamTables, "_complete", value=None)


def tombstones_forgotten_at_a_takeover() -> list[Replacement]:
    right = Tables.add_tombstones

    def add_tombstones(self: Tables, rows: Iterable[TombstoneRow]) -> None:
        if self.is_open:
            right(self, rows)

    return [(Tables, "add_tombstones", add_tombstones)]


def tombstones_counted_and_not_logged() -> list[Replacement]:
    return _manifests_without("tombstones")


def deletion_lost_while_its_table_is_written() -> list[Replacement]:
    return _manifests_without("deleted")


def _manifests_without(field: str) -> list[Replacement]:
    """Commit each change of a manifest without the value of one field."""
    right, empty = Context.commit, ManifestChange._field_defaults[field]
    return [(Context, "commit", lambda self, change: right(self, change._replace(**{field: empty})))]


ORPHAN_BUGS = by_name(
    orphans_deleted_during_a_compaction,
    fence_taken_for_an_orphan,
    slots_above_the_floor_taken_for_orphans,
)
TABLE_BUGS = by_name(
    table_named_before_it_is_uploaded,
    table_deleted_before_a_manifest_without_it_counts,
    new_tables_taken_for_those_of_earlier_owners,
    tables_not_looked_for_at_a_takeover,
    tombstones_forgotten_at_a_takeover,
    tombstones_counted_and_not_logged,
    deletion_lost_while_its_table_is_written,
)
