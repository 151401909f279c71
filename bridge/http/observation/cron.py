"""GET /api/cron: the next runs of a cron expression, and those around the changes of its zone's clock.

?expression=, zone=, from_ms=, count=
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final

from aiohttp import web

from duolog.bridge.http.answers import Json, answer
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import check_query, number, required
from duolog.delay.recurring import Cron, clock_change, zone_of

RUNS_MAX: Final = 100
CHANGES_MAX: Final = 4
RUNS_BEFORE: Final = 2  # The number of runs that are shown before a change, and as many after it.
MONTH_MS: Final = 31 * 86_400_000
YEAR: Final = timedelta(days=366)
TIME_MAX_MS: Final = 1 << 47


async def get_cron(context: HttpContext, request: web.Request) -> web.Response:
    check_query(request, {"expression", "zone", "from_ms", "count"})
    now_ms = context.clock.now_ms()
    cron = Cron(required(request, "expression"), request.query.get("zone") or "UTC")
    count = number(request, "count", 10, RUNS_MAX, lowest=1)
    runs = await _runs_after(cron, number(request, "from_ms", now_ms, TIME_MAX_MS) - 1, count)
    changes = [each async for each in _changes(cron, runs[0])]
    shown = [_run(cron, run) for run in runs]
    return answer({"expression": cron.expression, "zone": cron.zone, "runs": shown, "changes": changes})


async def _runs_after(cron: Cron, after_ms: int, count: int) -> list[int]:
    runs = list[int]()
    for _ in range(count):
        after_ms = cron.next_ms(after_ms)
        runs.append(after_ms)
        await asyncio.sleep(0)
    return runs


async def _changes(cron: Cron, first_ms: int) -> AsyncIterator[Json]:
    zone = zone_of(cron.zone)
    begin = datetime.fromtimestamp(first_ms // 1000, UTC)
    end = begin + YEAR
    for _ in range(CHANGES_MAX):
        change = clock_change(begin, end, zone)
        if change is None:
            return
        change_ms = int(change.timestamp()) * 1000
        runs = _runs_before(cron, change_ms) + await _runs_after(cron, change_ms - 1, RUNS_BEFORE)
        yield {
            "at_ms": change_ms,
            "before": (change - timedelta(seconds=1)).astimezone(zone).isoformat()[19:],
            "after": change.astimezone(zone).isoformat()[19:],
            "runs": [_run(cron, run) for run in runs],
        }
        begin = change


def _runs_before(cron: Cron, change_ms: int) -> list[int]:
    """Return the last runs before a change of the clock, if they are at most MONTH_MS before it."""
    first_ms, end_ms, found = cron.next_ms(change_ms - MONTH_MS), change_ms, list[int]()
    while first_ms < end_ms and len(found) < RUNS_BEFORE:
        end_ms = cron.latest_ms(first_ms, end_ms - 1)
        found.insert(0, end_ms)
    return found


def _run(cron: Cron, due_ms: int) -> Json:
    local = datetime.fromtimestamp(due_ms // 1000, UTC).astimezone(zone_of(cron.zone))
    return {"due_ms": due_ms, "local": local.isoformat()}
