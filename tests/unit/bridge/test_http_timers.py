"""The JSON API of timers, where requests meet on their way; its verbs are tested on the wire."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

from bridge.http_timers import TimerApi
from store.entry import Promise
from tests.kit.core import ManualCore


def asked(body: object = None, **query: str) -> Any:
    return SimpleNamespace(body=json.dumps(body).encode(), query=query)


async def read(request: Any) -> bytes:
    return cast(bytes, request.body)


async def kept(promise: Promise) -> None:
    pass


def test_schedule_that_is_removed_while_its_registration_is_kept_was_registered() -> None:
    core = ManualCore()
    core.topic()

    async def removed_meanwhile(promise: Promise) -> None:
        core.schedules.remove("nightly", core.clock.now_ms())

    wanted = {"topic": "orders", "name": "nightly", "value": "v", "cron": "0 3 * * *"}
    answer = asyncio.run(TimerApi(cast(Any, core), removed_meanwhile, read)._register(asked(wanted)))
    assert (answer.status, json.loads(cast(bytes, answer.body))["outcome"]) == (201, "created")
    assert core.schedules.get("nightly") is None


def test_page_has_one_row_at_least() -> None:
    core = ManualCore()
    core.topic()
    api = TimerApi(cast(Any, core), kept, read)
    for _ in range(2):
        asyncio.run(api._add(asked({"topic": "orders", "value": "v", "delay_ms": 60_000})))
    page = json.loads(cast(bytes, asyncio.run(api._list(asked(limit="0"))).body))
    assert (len(page["timers"]), page["next"] is None) == (1, False)
    rest = json.loads(cast(bytes, asyncio.run(api._list(asked(limit="0", after=page["next"]))).body))
    assert (len(rest["timers"]), rest["next"]) == (1, None)
