"""/api/schedules: recurring messages. Times are wall milliseconds. An answer waits until the change is durable.

POST   /api/schedules                 NewSchedule: created, unchanged or replaced
GET    /api/schedules, /{name}        with the next run
DELETE /api/schedules/{name}
"""

from aiohttp import web

from duolog.bridge.data.delayed.schedules import ScheduleOutcome
from duolog.bridge.data.publishing.publisher import check_record
from duolog.bridge.http.answers import Json, Listing, answer, array
from duolog.bridge.http.api.timers import pending_message_view
from duolog.bridge.http.api_part import ApiPart
from duolog.bridge.http.message_forms import TopicMessageForm, record_of
from duolog.bridge.http.requests import parsed, topic_named
from duolog.bridge.records import frame_formats
from duolog.delay.recurring import (
    BadSchedule,
    Cron,
    Every,
    Missed,
    Schedule,
)
from duolog.delay.schedules import DeliverySchedule, RecurringMessage
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.store.index.queue import Queue


# The class has more than 15 fields because the body of a request has those of a message and those of a rule.
class NewSchedule(TopicMessageForm, forbid_unknown_fields=True, kw_only=True):
    """A recurring message: either `every_ms`, from now or from `start_ms`, or `cron`, in UTC or in `zone`."""

    name: str
    every_ms: int | None = None
    start_ms: int | None = None
    cron: str | None = None
    zone: str | None = None
    until_ms: int | None = None
    count: int | None = None
    missed: str = Missed.ONCE.value


class ScheduleApi(ApiPart):
    """The routes."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/schedules", self._register),
            web.get("/api/schedules", self._schedules),
            web.get("/api/schedules/{name}", self._schedule),
            web.delete("/api/schedules/{name}", self._remove),
        ]

    async def _register(self, request: web.Request) -> web.Response:
        context = self._context
        wanted = parsed(await self._read(request), NewSchedule)
        topic = topic_named(context, wanted.topic)
        now_ms = context.clock.now_ms()
        queue_id, record = record_of(topic, wanted, now_ms, spread_by=wanted.name)
        check_record(topic, record)
        builder = BatchBuilder()  # The bytes are equal for equal requests, because each run sets its own time.
        builder.append(0, 0, record.key, record.value, record.headers)
        message = RecurringMessage(topic.key(queue_id), frame_formats.KAFKA, bytes(builder.finish(0, 0)))
        expires = context.delayed.expiry_parser.parse_headers(record.headers, now_ms) is not None
        records = context.delayed.expiring_queues.records_for(message.key) if expires else []
        outcome, promise = context.delayed.schedules.register(wanted.name, _schedule(wanted), message, now_ms, records)
        found = context.delayed.schedules.state.get(wanted.name)
        assert found is not None, "it was registered"
        view = self._schedule_view(found)  # Another request may remove the schedule while this one waits.
        await self._kept(promise)
        return answer({"outcome": outcome.value} | view, 201 if outcome is ScheduleOutcome.CREATED else 200)

    async def _schedules(self, request: web.Request) -> web.StreamResponse:
        await self._kept(self._context.state_log.barrier())
        return Listing(array(map(self._schedule_view, list(self._context.delayed.schedules.state.all()))))

    async def _schedule(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        found = self._context.delayed.schedules.state.get(name)
        await self._kept(self._context.state_log.barrier())
        if found is None:
            raise web.HTTPNotFound(text=f"there is no schedule {name[:300]}")
        message = found.message
        return answer(self._schedule_view(found) | pending_message_view(message.form, message.frame))

    async def _remove(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        outcome, promise = self._context.delayed.schedules.remove(name, self._context.clock.now_ms())
        await self._kept(promise)
        if outcome is ScheduleOutcome.NOT_FOUND:
            raise web.HTTPNotFound(text=f"there is no schedule {name[:300]}")
        return answer({"outcome": outcome.value})

    def _schedule_view(self, found: DeliverySchedule) -> Json:
        schedule, run = found.schedule, found.run
        topic = self._context.topics.by_number(found.topic)
        plan = schedule.plan
        if isinstance(plan, Every):
            asked: Json = {"every_ms": plan.period_ms, "start_ms": plan.start_ms}
        else:
            asked = {"cron": plan.expression, "zone": plan.zone}
        return {
            "name": found.name,
            "topic": topic.name if topic is not None else None,
            "queue": Queue.split(found.message.key)[1],
            **asked,
            "until_ms": schedule.until_ms,
            "count": schedule.count,
            "missed": schedule.missed.value,
            "next_ms": None if run is None else run.due_ms,
            "runs": found.runs,
        }


def _schedule(wanted: NewSchedule) -> Schedule:
    if (wanted.every_ms is None) == (wanted.cron is None):
        raise BadSchedule("expected either every_ms or cron")
    if wanted.cron is not None and wanted.start_ms is not None:
        raise BadSchedule("start_ms goes with every_ms")
    if wanted.cron is None and wanted.zone is not None:
        raise BadSchedule("zone goes with cron")
    if wanted.missed not in {rule.value for rule in Missed}:
        raise BadSchedule(f"missed: expected skip, once or all, got {wanted.missed[:40]!r}")
    plan: Every | Cron
    if wanted.cron is None:
        plan = Every(wanted.every_ms or 0, wanted.start_ms)
    else:
        plan = Cron(wanted.cron, "UTC" if wanted.zone is None else wanted.zone)
    return Schedule(plan, wanted.until_ms, wanted.count, Missed(wanted.missed))
