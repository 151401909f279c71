"""Actions on consumer groups and their dead letters."""

from duolog.bridge.console.actions.planned import Planned
from duolog.bridge.console.commands import duolog, option, options
from duolog.bridge.console.forms import Form, FormError, given, moment
from duolog.bridge.http.api.groups import LETTER_FILTERS
from duolog.bridge.http.local_api import path_of


def reset(form: Form) -> Planned:
    """Reset committed offsets; without `execute`, the answer says what would change."""
    name, to, offset = form.text("group"), form.optional("to"), form.number("offset")
    time_ms, back_ms = form.moment_ms("time"), form.length_ms("back")
    if time_ms is not None and back_ms is not None:
        raise FormError("expected either a moment or a length of time to go back")
    time_ms = form.now_ms - back_ms if back_ms is not None else time_ms
    topics, execute = form.lines("topics"), form.flag("execute")
    body = given(to=to, offset=offset, time_ms=time_ms, topics=topics or None) | {"execute": execute}
    words = duolog(
        "group", "reset", name, *option("--to", to), *option("--to-offset", offset),
        *option("--to-time", None if time_ms is None else moment(time_ms)), *options("--topic", topics),
        *option("--execute", execute),
    )  # fmt: skip
    done = f"The offsets of {name} were reset." if execute else f"This is what a reset of {name} would change."
    return Planned("POST", path_of("/api/groups/{}/reset", name), words, done, body)


def delete(form: Form) -> Planned:
    name, execute = form.text("group"), form.flag("execute")
    words = duolog("group", "delete", name, *option("--execute", execute))
    done = f"The group {name} was deleted." if execute else f"This is what would be deleted of {name}."
    query = {"execute": "true"} if execute else {}
    return Planned("DELETE", path_of("/api/groups/{}", name), words, done, query=query)


def redrive(form: Form) -> Planned:
    name, to, offsets = form.text("group"), form.optional("to"), form.numbers("offsets")
    if form.flag("some") and not offsets:
        raise FormError("select at least one dead letter")
    filters = given(**{field: form.optional(field) for field in LETTER_FILTERS})
    words = duolog(
        "group", "redrive", name, *option("--to", to), *options("--offset", offsets),
        *(word for field, text in filters.items() for word in option(f"--{field}", text)),
    )  # fmt: skip
    done = f"{len(offsets) or 'All'} dead letters of {name}{' that match' if filters else ''} were sent again."
    body = given(to=to, offsets=offsets or None) | filters
    return Planned("POST", path_of("/api/groups/{}/redrive", name), words, done, body)
