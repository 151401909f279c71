"""The action that sends a message, which may be delayed."""

from duolog.bridge.console.actions.planned import Planned
from duolog.bridge.console.commands import duolog, option, options
from duolog.bridge.console.forms import Form, given, moment
from duolog.bridge.http.local_api import path_of


def send(form: Form) -> Planned:
    topic, value, key = form.text("topic"), form.raw("value"), form.optional("key")
    headers, tag, queue = form.pairs("headers"), form.optional("tag"), form.number("queue")
    at_ms, delay_ms = form.moment_ms("at"), form.length_ms("delay")
    body = given(value=value, key=key, headers=headers or None, tag=tag, queue=queue, at_ms=at_ms, delay_ms=delay_ms)
    words = duolog(
        "produce", topic, *((value,) if value is not None else ()), *option("--key", key),
        *options("--header", [f"{name}={text}" for name, text in headers.items()]),
        *option("--tag", tag), *option("--queue", queue), *option("--in", form.optional("delay")),
        *option("--at", None if at_ms is None else moment(at_ms)),
    )  # fmt: skip
    return Planned("POST", path_of("/api/topics/{}/messages", topic), words, f"The message was sent to {topic}.", body)
