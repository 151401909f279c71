"""Actions on delayed messages and schedules. The API answers an outcome, which stands before `done`."""

from duolog.bridge.console.actions.planned import Planned
from duolog.bridge.console.commands import duolog, option, options
from duolog.bridge.console.forms import Form, FormError, given, moment
from duolog.bridge.http.local_api import path_of


def cancel(form: Form) -> Planned:
    timer = form.text("id")
    words = duolog("timer", "cancel", timer)
    return Planned("DELETE", path_of("/api/timers/{}", timer), words, f"the pending message {timer}")


def reschedule(form: Form) -> Planned:
    timer = form.text("id")
    time, when = _time(form)
    words = duolog("timer", "reschedule", timer, *when)
    return Planned("POST", path_of("/api/timers/{}/reschedule", timer), words, f"the pending message {timer}", time)


def deliver_now(form: Form) -> Planned:
    timer = form.text("id")
    words = duolog("timer", "now", timer)
    return Planned("POST", path_of("/api/timers/{}/now", timer), words, f"the pending message {timer}")


def cancel_key(form: Form) -> Planned:
    topic, key = form.text("topic"), form.text("key")
    words = duolog("timer", "cancel", "--topic", topic, "--key", key)
    done = f"the pending messages of {topic} with the key {key}"
    return Planned("DELETE", "/api/timers", words, done, query={"topic": topic, "key": key})


def reschedule_key(form: Form) -> Planned:
    topic, key = form.text("topic"), form.text("key")
    time, when = _time(form)
    words = duolog("timer", "reschedule", "--topic", topic, "--key", key, *when)
    done = f"the pending messages of {topic} with the key {key}"
    return Planned("POST", "/api/timers/reschedule", words, done, {"topic": topic, "key": key} | time)


def add_schedule(form: Form) -> Planned:
    name, topic, value, key = form.text("name"), form.text("topic"), form.raw("value"), form.optional("key")
    every_ms, cron, zone = form.length_ms("every"), form.optional("cron"), form.optional("zone")
    until_ms, count, missed = form.moment_ms("until"), form.number("count"), form.optional("missed")
    headers = form.pairs("headers")
    body = given(
        name=name, topic=topic, value=value, key=key, headers=headers or None, every_ms=every_ms, cron=cron, zone=zone,
        until_ms=until_ms, count=count, missed=missed,
    )  # fmt: skip
    words = duolog(
        "schedule", "add", name, topic, value, *option("--key", key),
        *options("--header", [f"{name}={text}" for name, text in headers.items()]),
        *option("--every", form.optional("every")), *option("--cron", cron), *option("--zone", zone),
        *option("--until", None if until_ms is None else moment(until_ms)), *option("--count", count),
        *option("--missed", missed),
    )  # fmt: skip
    return Planned("POST", "/api/schedules", words, f"the schedule {name}", body)


def remove_schedule(form: Form) -> Planned:
    name = form.text("name")
    words = duolog("schedule", "remove", name)
    return Planned("DELETE", path_of("/api/schedules/{}", name), words, f"the schedule {name}")


def _time(form: Form) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the new time of a form as the API expects it, and as options of a command."""
    at_ms, delay_ms = form.moment_ms("at"), form.length_ms("delay")
    if (at_ms is None) == (delay_ms is None):
        raise FormError("expected either a moment or a length of time from now")
    if at_ms is not None:
        return {"at_ms": at_ms}, ("--at", moment(at_ms))
    assert delay_ms is not None
    return {"delay_ms": delay_ms}, ("--in", form.text("delay"))
