"""Actions on transactions and half messages."""

from duolog.bridge.console.actions.planned import Planned
from duolog.bridge.console.commands import duolog
from duolog.bridge.console.forms import Form, FormError
from duolog.bridge.http.local_api import path_of


def abort(form: Form) -> Planned:
    id = form.text("id")
    done = f"The transaction of {id} was aborted, and its producer is fenced."
    return Planned("DELETE", path_of("/api/transactions/{}", id), duolog("txn", "abort", id), done)


def commit(form: Form) -> Planned:
    return _decide(form, "commit", "committed")


def roll_back(form: Form) -> Planned:
    return _decide(form, "rollback", "rolled back")


def _decide(form: Form, verdict: str, done: str) -> Planned:
    """Decide a half message: a RocketMQ producer's by its offset, a Kafka producer's by TOPIC/ID."""
    offset = form.number("half_offset")
    if offset is not None:
        words = duolog("txn", verdict, "--half-offset", offset)
        path = path_of("/api/half-messages/{}", str(offset))
        return Planned("POST", path, words, f"The half message {offset} was {done}.", {"verdict": verdict})
    id = form.text("id")
    topic, slash, half = id.partition("/")
    if not slash:
        raise FormError(f"id: expected TOPIC/ID of a half message, got {id[:80]!r}")
    path = path_of("/api/transactions/{}/{}", topic, half)
    words = duolog("txn", verdict, id)
    return Planned("POST", path, words, f"The half message {id} was {done}.", {"verdict": verdict})
