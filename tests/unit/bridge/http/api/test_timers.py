"""The HTTP API of timers with concurrent requests; its commands are tested in tests/wire/test_timers.py."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from multidict import CIMultiDict

from duolog.bridge.http.api.topics import topic_view
from duolog.delay.recurring import BadSchedule
from duolog.delay.requested_delay import DelayRefused
from duolog.protocol.kafka import record_reader
from duolog.store.entry import Promise
from tests.kit.core import ManualCore
from tests.kit.http import TimerHandlers


class Asked(SimpleNamespace):
    """The members of a request that the handlers use; nobody has logged in."""

    def get(self, key: object) -> None:
        return None


def asked(body: object = None, **query: str) -> Any:
    return Asked(body=json.dumps(body).encode(), query=query, headers=CIMultiDict[str]())


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
    answer = asyncio.run(TimerHandlers(core, removed_meanwhile, read)._register(asked(wanted)))
    assert (answer.status, json.loads(cast(bytes, answer.body))["outcome"]) == (201, "created")
    assert core.schedules.state.get("nightly") is None


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"every_ms": 1000, "cron": "0 3 * * *"}, "expected either every_ms or cron"),
        ({}, "expected either every_ms or cron"),
        ({"cron": "0 3 * * *", "start_ms": 0}, "start_ms goes with every_ms"),
        ({"every_ms": 1000, "zone": "UTC"}, "zone goes with cron"),
        ({"every_ms": 1000, "missed": "some"}, "missed: expected skip, once or all, got 'some'"),
    ],
)
def test_schedule_that_contradicts_itself_is_refused(wanted: dict[str, object], says: str) -> None:
    core = ManualCore()
    core.topic()
    with pytest.raises(BadSchedule, match=says):
        asyncio.run(TimerHandlers(core, kept, read)._register(asked({"topic": "orders", "name": "s"} | wanted)))


def test_schedule_is_shown_with_its_message() -> None:
    core = ManualCore()
    core.topic()
    api = TimerHandlers(core, kept, read)
    wanted = {"topic": "orders", "name": "s", "value": "v", "key": "k", "headers": {"a": "b"}, "every_ms": 1000}
    asyncio.run(api._register(asked(wanted)))
    shown = json.loads(cast(bytes, asyncio.run(api._schedule(SimpleNamespace(match_info={"name": "s"}))).body))
    assert {name: shown[name] for name in wanted} == wanted


def test_outcome_by_key_says_of_how_many() -> None:
    core = ManualCore()
    core.topic()
    api = TimerHandlers(core, kept, read)
    for _ in range(2):
        asyncio.run(api._add(asked({"topic": "orders", "key": "k", "value": "v", "delay_ms": 60_000})))
    named = {"topic": "orders", "key": "k"}
    for verb, request, expected in [
        (api._reschedule_named, asked(named | {"delay_ms": 1_000}), {"outcome": "rescheduled", "messages": 2}),
        (api._cancel_named, asked(**named), {"outcome": "cancelled", "messages": 2}),
        (api._cancel_named, asked(**named), {"outcome": "cancelled", "messages": 0}),
    ]:
        assert json.loads(cast(bytes, asyncio.run(verb(request)).body)) == expected


def test_list_names_the_paused_topics_that_it_is_about() -> None:
    core = ManualCore()
    core.topic("refunds")
    core.delays.pause(core.topic(), core.clock.now_ms())
    api = TimerHandlers(core, kept, read)
    for query, expected in [({}, ["orders"]), ({"topic": "orders"}, ["orders"]), ({"topic": "refunds"}, [])]:
        assert json.loads(cast(bytes, asyncio.run(api._list(asked(**query))).body))["paused"] == expected
    assert b'"is_paused":true' in b"".join(filter(None, topic_view(core.http_context(), core.topic())))


def test_time_that_is_too_far_away_is_refused_in_words() -> None:
    core = ManualCore()
    core.topic()
    wanted = {"topic": "orders", "value": "v", "delay_ms": 4000 * 86_400_000}
    with pytest.raises(DelayRefused, match=r"^the time asked for is 4000 days from now; delay.max_days is 3650$"):
        asyncio.run(TimerHandlers(core, kept, read)._add(asked(wanted)))


def test_pages_of_one_row_each() -> None:
    core = ManualCore()
    core.topic()
    api = TimerHandlers(core, kept, read)
    for _ in range(2):
        asyncio.run(api._add(asked({"topic": "orders", "value": "v", "delay_ms": 60_000})))
    page = json.loads(cast(bytes, asyncio.run(api._list(asked(limit="1"))).body))
    assert (len(page["timers"]), page["next"] is None) == (1, False)
    rest = json.loads(cast(bytes, asyncio.run(api._list(asked(limit="1", after=page["next"]))).body))
    assert (len(rest["timers"]), rest["next"]) == (1, None)


@pytest.mark.parametrize("after", ["99999999999999999999999-1", f"0-{1 << 64}", f"{1 << 63}-0", "1" * 50, "-", "-1-1"])
def test_place_that_no_page_gave_is_refused(after: str) -> None:
    core = ManualCore()
    topic = core.topic()
    api = TimerHandlers(core, kept, read)
    asyncio.run(api._add(asked({"topic": "orders", "value": "v", "delay_ms": 1000})))
    core.delays.pause(topic, core.clock.now_ms())
    core.clock.pass_ms(2000)
    core.delays.run(core.clock.now_ms(), 0)
    with pytest.raises(web.HTTPBadRequest):
        asyncio.run(api._list(asked(after=after)))
    largest = asyncio.run(api._list(asked(after=f"{(1 << 63) - 1}-{(1 << 63) - 1}")))
    assert json.loads(cast(bytes, largest.body))["timers"] == []


@pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "AMQ_SCHEDULED_CRON", "TIMER_REPLACE", "TRAN_MSG_ID"])
def test_header_that_would_ask_the_broker_for_something_is_refused(name: str) -> None:
    core = ManualCore()
    core.topic()
    api = TimerHandlers(core, kept, read)
    wanted = {"topic": "orders", "value": "v", "headers": {name: "true"}}
    for verb, request in (
        (api._add, asked(wanted | {"delay_ms": 1})),
        (api._register, asked(wanted | {"name": "s", "every_ms": 1_000})),
    ):
        with pytest.raises(web.HTTPBadRequest) as refused:
            asyncio.run(verb(request))
        assert f"header {name}" in (refused.value.text or "")


def test_moment_that_has_passed_is_now_and_replaces_nothing() -> None:
    """As with a Kafka header: who is not delayed replaces nothing. A record of 1970 would mislead look-ups by time."""
    core = ManualCore()
    topic = core.topic()
    api = TimerHandlers(core, kept, read)
    wanted = {"topic": "orders", "key": "k", "value": "v", "queue": 0}
    asyncio.run(api._add(asked(wanted | {"delay_ms": 60_000})))
    made = asyncio.run(api._add(asked(wanted | {"at_ms": 1, "replace": True})))
    assert json.loads(cast(bytes, made.body))["due_ms"] == core.clock.now_ms()
    assert core.delays.timers.tree.lists.count(topic.number) == 2
    asyncio.run(api._add(asked(wanted | {"delay_ms": 1_000, "replace": True})))
    assert core.delays.timers.tree.lists.count(topic.number) == 1
    assert (core.metrics.timers["accepted"], core.metrics.timers["cancelled"]) == (3, 2)


def test_timer_without_a_key_replaces_nothing_and_is_refused() -> None:
    core = ManualCore()
    topic = core.topic()
    wanted = {"topic": "orders", "value": "v", "delay_ms": 1_000, "replace": True}
    with pytest.raises(web.HTTPBadRequest, match="Bad Request") as refused:
        asyncio.run(TimerHandlers(core, kept, read)._add(asked(wanted)))
    assert "replace: needs a key" in (refused.value.text or "")
    assert core.delays.timers.tree.lists.count(topic.number) == 0


def test_timer_and_schedule_whose_messages_expire() -> None:
    core = ManualCore()
    topic = core.topic()
    api = TimerHandlers(core, kept, read)
    headers = {"EXPIRE_AFTER_MS": "50"}
    expires_ms = core.clock.now_ms() + 50
    made = asyncio.run(
        api._add(asked({"topic": "orders", "value": "v", "delay_ms": 60_000, "queue": 1, "headers": headers}))
    )
    core.settle()
    assert [queue.key in core.expiring_queues for queue in topic.queues] == [False, True]
    id = json.loads(cast(bytes, made.body))["id"]
    shown = json.loads(cast(bytes, asyncio.run(api._view(Asked(match_info={"id": id}))).body))
    assert shown["headers"]["EXPIRE_AT_MS"] == str(expires_ms)
    wanted = {"topic": "orders", "name": "tick", "value": "v", "every_ms": 1000, "queue": 0, "headers": headers}
    asyncio.run(api._register(asked(wanted)))
    assert topic.queues[0].key in core.expiring_queues
    core.pass_ms(1000)
    core.schedules.run(core.clock.now_ms(), core.clock.mono_ms())
    core.settle()
    (entry,) = core.store.reader.read(topic.queues[0], 0, max_bytes=1 << 20, until=1)
    (record,) = record_reader.records(entry.frame, 1 << 20)
    assert record.headers == [("EXPIRE_AFTER_MS", b"50")], "each run lives so long"
    for bad in ("0", "soon"):
        with pytest.raises(DelayRefused, match="EXPIRE_AFTER_MS"):
            asyncio.run(
                api._add(asked({"topic": "orders", "value": "v", "delay_ms": 1, "headers": {"EXPIRE_AFTER_MS": bad}}))
            )
