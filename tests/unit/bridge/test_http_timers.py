"""The JSON API of timers, where requests meet on their way; its verbs are tested on the wire."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.http_timers import TimerApi
from bridge.wishes import DelayRefused
from protocol.kafka import record_batch
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


def test_timer_and_schedule_whose_messages_expire() -> None:
    core = ManualCore()
    topic = core.topic()
    api = TimerApi(cast(Any, core), kept, read)
    headers = {"EXPIRE_AFTER_MS": "50"}
    expires_ms = core.clock.now_ms() + 50
    made = asyncio.run(
        api._add(asked({"topic": "orders", "value": "v", "delay_ms": 60_000, "queue": 1, "headers": headers}))
    )
    core.settle()
    assert [queue.key in core.lifetimes for queue in topic.queues] == [False, True]
    id = json.loads(cast(bytes, made.body))["id"]
    shown = json.loads(cast(bytes, asyncio.run(api._view(SimpleNamespace(match_info={"id": id}))).body))
    assert shown["headers"]["EXPIRE_AT_MS"] == str(expires_ms)
    wanted = {"topic": "orders", "name": "tick", "value": "v", "every_ms": 1000, "queue": 0, "headers": headers}
    asyncio.run(api._register(asked(wanted)))
    assert topic.queues[0].key in core.lifetimes
    core.pass_ms(1000)
    core.schedules.run(core.clock.now_ms(), core.clock.mono_ms())
    core.settle()
    (entry,) = core.store.read(topic.queues[0], 0, max_bytes=1 << 20, until=1)
    (record,) = record_batch.records(entry.frame, 1 << 20)
    assert record.headers == [("EXPIRE_AFTER_MS", b"50")], "each run lives so long"
    for bad in ("0", "soon"):
        with pytest.raises(DelayRefused, match="EXPIRE_AFTER_MS"):
            asyncio.run(
                api._add(asked({"topic": "orders", "value": "v", "delay_ms": 1, "headers": {"EXPIRE_AFTER_MS": bad}}))
            )
