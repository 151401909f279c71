"""/api/leases: what who reads the log's files beside the broker must know, and its hold on them (`bridge/leases.py`).

    POST   /api/leases         {"topics": [...], "lease_ms"?}  ->  201 {"lease", "directory", "segments", "queues", ...}
                               401, 403 for a caller who may not read them (`bridge/http_readers.py`)
    POST   /api/leases/{id}    renew: it begins anew           ->  200, or 410 if it has ended
    DELETE /api/leases/{id}    end it                          ->  200, or 410

`segments` name files and the positions in them; `queues` the offsets that are visible and committed now, by the queue's
key in the log, and the aborted transactions among them. Nothing else is to be read from the files.
"""

import os
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from bridge import forms
from bridge.http_readers import MayNotRead, Readers, UnknownReader
from bridge.leases import LEASE_MS, LEASE_MS_MAX, TooManyLeases, named, plan

if TYPE_CHECKING:
    from bridge.broker import Broker


class NewLease(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/leases."""

    topics: list[str]
    lease_ms: int = LEASE_MS


def take(broker: "Broker", wanted: NewLease, readers: Readers, caller: str) -> dict[str, Any]:
    """Plan a scan of some topics and hold what it reads; raises HTTPException."""
    if not 0 < wanted.lease_ms <= LEASE_MS_MAX:
        raise web.HTTPBadRequest(text=f"lease_ms: expected 1 to {LEASE_MS_MAX}, got {wanted.lease_ms}")
    try:
        readers.check(caller, [])
        topics = named(broker.topics, wanted.topics)
        readers.check(caller, topics)
    except UnknownReader as error:
        raise web.HTTPUnauthorized(text=str(error)) from error
    except MayNotRead as error:
        raise web.HTTPForbidden(text=str(error)) from error
    except KeyError as error:
        raise web.HTTPNotFound(text=f"there is no topic {str(error.args[0])[:300]}") from error
    store = broker.store
    scan = plan(topics, list(store.segments()), store.written, broker.isolation)
    try:
        number = broker.leases.take(scan.held_from, wanted.lease_ms, broker.clock.mono_ms())
    except TooManyLeases as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from error
    return {
        "lease": number,
        "lease_ms": wanted.lease_ms,
        "directory": os.path.abspath(broker.options.store.directory),
        "inflate_bytes_max": broker.options.convert.inflate_bytes_max,
        "forms": {"kafka": forms.KAFKA, "rocketmq": forms.ROCKETMQ},
        "segments": scan.segments,
        "queues": scan.queues,
    }


def renew(broker: "Broker", lease: str) -> dict[str, Any]:
    number = _number(lease)
    if not broker.leases.renew(number, broker.clock.mono_ms()):
        raise _ended(lease)
    return {"lease": number}


def release(broker: "Broker", lease: str) -> dict[str, Any]:
    number = _number(lease)
    if not broker.leases.release(number):
        raise _ended(lease)
    return {"released": number}


def _number(lease: str) -> int:
    if not lease.isascii() or not lease.isdecimal() or len(lease) > 18:
        raise web.HTTPNotFound(text=f"no lease has the number {lease[:30]!r}")
    return int(lease)


def _ended(lease: str) -> web.HTTPException:
    return web.HTTPGone(text=f"lease {lease} has ended; what it held may be removed")
