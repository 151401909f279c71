"""/api/backups: which position and files a backup of a serving broker has.

    POST /api/backups   {"lease_ms"?}  ->  201 {"lease", "lease_ms", "directory", "position", "segments", "tables"}

A backup is a copy of all files of the log up to a position, and of the sorted tables that are current there. The client
copies the files itself (`store/backup/sources.py`), under a lease of the whole log, which it renews and ends by the
routes of `leases.py`. The request needs the right to read all topics, which is the pattern "*": 401 for an unknown
token, 403 for a token without this right.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
from aiohttp import web

from duolog.bridge.http.access.readers import Readers
from duolog.bridge.http.answers import Listing, array, to_json
from duolog.bridge.http.api.leases import caller_of, grant, lease_ms_of, readers_of
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import parsed
from duolog.bridge.state.leases import ReaderLease
from duolog.delay.tables.table_format import TableEntry, files_of
from duolog.store.entry import WRITTEN, Promise
from duolog.store.log.segment import Segment


class NewBackup(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/backups."""

    lease_ms: int | None = None  # As in NewLease.


class BackupApi(ApiPart):
    """The route. `readers` returns the table of tokens, which a reload of the settings replaces."""

    def __init__(self, context: HttpContext, io: RequestIo, readers: Callable[[], Readers]) -> None:
        super().__init__(context, io)
        self._readers = readers

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/api/backups", self._backup)]

    async def _backup(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        wanted = parsed(body, NewBackup) if body else NewBackup()
        lease = self._grant(request, wanted)
        # The position, and what the log and the tables are there, belong to the same moment.
        position = self._context.store.next_position
        segments = [each for each in self._context.store.segments() if each.start < position]
        tables = self._context.delayed.delays.timers.tree.context.tables.manifest
        try:
            await self._kept(Promise(position, WRITTEN))
        except BaseException:
            self._context.leases.release(lease)
            raise
        parts = _plan(self._context, lease, position, segments, tables)
        return Listing(parts, 201, undo=partial(self._context.leases.release, lease))

    def _grant(self, request: web.Request, wanted: NewBackup) -> ReaderLease:
        """Grant a lease on the whole log. Raises HTTPException, UnknownReader, MayNotRead."""
        lease_ms = lease_ms_of(self._context, wanted.lease_ms)
        readers_of(request, self._readers).check_all(caller_of(request))
        return grant(self._context, [], request.remote or "", lease_ms)


def _plan(
    context: HttpContext, lease: ReaderLease, position: int, segments: Sequence[Segment], tables: Sequence[TableEntry]
) -> Iterator[bytes | None]:
    head = {
        "lease": lease.id,
        "lease_ms": lease.lease_ms,
        "directory": os.path.abspath(context.options.store.directory),
        "position": position,
    }
    yield to_json(head)[:-1] + b',"segments":'
    yield from array(
        {"path": each.path, "size": 0 if each.is_gap else min(each.known_end, position) - each.start}
        for each in segments
    )
    yield b',"tables":'
    yield from array(file._asdict() for entry in tables for file in files_of(entry))
    yield b"}"
