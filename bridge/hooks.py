"""Hooks: Python code of the operator that the broker calls around the requests of RocketMQ clients.

    before_request ─> before_send ─> handler ─> answer sent ─> after_request ─> after_send or consumed
       may refuse      may refuse,                               get the result;
                       may change                                no request waits for them

A hook is a class derived from `Hook`. The broker finds hooks through the entry point group `duolog.hooks` of installed
packages, creates one object of each class at its start, and calls the objects in worker threads. All before-hooks of a
request together have `hooks.timeout_ms`; only that request waits for them. If a hook raises or the time is over, the
request continues without the hook: its changes are dropped, and the failure is logged and counted. If no hook is
installed, requests need no further time.

Apache RocketMQ has RPCHook, SendMessageHook and ConsumeMessageHook for this purpose.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from threading import Lock
from typing import Any, Final, TypeVar

from duolog.bridge.config import HooksOptions
from duolog.delay.wheel import Wheel
from duolog.store.errors import StoreError
from duolog.store.workers import (
    Executor,
    Failure,
    Post,
    Workers,
)

log = logging.getLogger("hooks")

T = TypeVar("T")

GROUP: Final = "duolog.hooks"
NAMES: Final = ("before_request", "before_send", "after_request", "after_send", "consumed")


class Refuse(Exception):
    """Raised by a before-hook to refuse a request: the client gets NO_PERMISSION and the exception's text."""


# -- The arguments of hooks


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a RocketMQ client."""

    code: int  # A constant of RequestCode.java.
    name: str  # The name of that constant.
    client: str  # host:port
    fields: Mapping[str, str]  # The fields of the request's header, with the names that the client sent.


@dataclass(frozen=True, slots=True)
class ResponseStatus:
    """The result of a request."""

    code: int  # A constant of ResponseCode.java; 0 is success.
    remark: str


@dataclass(frozen=True, slots=True)
class Send:
    """A message that a producer sends, perhaps one of a batch. A before-hook changes it by `dataclasses.replace`."""

    topic: str
    group: str  # The producer group.
    client: str
    body: bytes  # Not compressed.
    properties: Mapping[str, str]  # TAGS, KEYS, UNIQ_KEY, and the properties that the application set.


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a send."""

    outcome: ResponseStatus
    message_id: str  # For a batch, all message ids joined by commas; "" if the message was refused.
    queue_id: int
    offset: int  # The offset of the first message; -1 if it was refused.


@dataclass(frozen=True, slots=True)
class Consumed:
    """Messages that a pull returned to a consumer. Whether the consumer processed them is not known."""

    topic: str
    group: str
    client: str
    queue_id: int
    offset: int
    next_offset: int
    body_bytes: int


class Hook:
    """The base class of hooks. Override the methods that you need; several threads may call them at the same time."""

    def before_request(self, request: Request) -> None:
        """Called before a request is handled; raise Refuse to refuse it."""

    def before_send(self, send: Send) -> Send | None:
        """Called before a message is stored; return another Send to store that instead, raise Refuse to refuse it."""

    def after_request(self, request: Request, outcome: ResponseStatus) -> None:
        """Called after a request was answered."""

    def after_send(self, sends: Sequence[Send], sent: Sent) -> None:
        """Called after a message, or a batch, was stored or refused."""

    def consumed(self, consumed: Consumed) -> None:
        """Called after a pull was answered with messages."""


# -- Calling them


class Hooks:
    """The installed hooks, the threads that call them, and their deadlines. Times are monotonic milliseconds."""

    def __init__(self, hooks: Sequence[Hook], options: HooksOptions, threads: Executor) -> None:
        self._hooks = {name: [each for each in hooks if _overrides(each, name)] for name in NAMES}
        self._timeout_ms = options.timeout_ms
        self._threads = threads
        self._waiting: Wheel[Callable[[], None]] = Wheel()
        self.skipped: Counter[str] = Counter()  # The number of skipped calls by reason: failed, late, busy.
        # Guards `skipped`, because several hooks may fail at the same time in different threads.
        self._skipped_lock = Lock()

    def has(self, *names: str) -> bool:
        """Return whether any hook overrides one of these methods."""
        return any(self._hooks[name] for name in names)

    def before(self, work: Callable[[], T], then: Callable[[T | Refuse | None], None], mono_ms: int) -> None:
        """Run `work` in a thread, then call `then` in the loop, once: with the result, a Refuse, or None if skipped."""
        waiting = self._waiting.add(mono_ms + self._timeout_ms, lambda: self._skip("late", then))

        def done(outcome: T | Refuse | Failure) -> None:
            if not self._waiting.cancel(waiting):
                return  # The time was over, and the request has continued without this result.
            if isinstance(outcome, StoreError | OSError):
                self._skip("busy", then)
            else:
                then(outcome)

        self._threads.submit(lambda: _refusal_or(work), done)

    def after(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread; no request waits for it."""

        def done(outcome: Failure | None) -> None:
            if outcome is not None:
                self._skip("busy", lambda _: None)

        self._threads.submit(work, done)

    def call(self, name: str, *arguments: Any) -> None:
        """Call the method `name` of all hooks; runs in a thread."""
        for hook in self._hooks[name]:
            try:
                getattr(hook, name)(*arguments)
            except Refuse:
                raise
            except Exception:  # noqa: BLE001 - a hook may raise any exception
                self._failed(hook, name)

    def changed(self, send: Send) -> Send:
        """Call `before_send` of all hooks, each with the message that the one before returned; runs in a thread."""
        for hook in self._hooks["before_send"]:
            try:
                given = hook.before_send(send)
                if given is not None and not isinstance(given, Send):
                    raise TypeError(f"before_send returned {type(given).__name__}, not Send or None")
            except Refuse:
                raise
            except Exception:  # noqa: BLE001 - a hook may raise any exception
                self._failed(hook, "before_send")
            else:
                send = given or send
        return send

    # -- Deadlines

    def next_deadline_ms(self) -> int | None:
        """Return the monotonic time at which the first waiting request goes on without its hooks."""
        return self._waiting.next_deadline_ms()

    def advance(self, mono_ms: int) -> None:
        """Let the requests go on whose hooks have used up `hooks.timeout_ms`."""
        for skip in self._waiting.advance(mono_ms):
            skip()  # Raises nothing: the request that goes on contains its own faults.

    def _skip(self, why: str, then: Callable[[Any], None]) -> None:
        self.skipped[why] += 1
        log.warning("hooks skipped reason=%s", why)
        then(None)

    def _failed(self, hook: Hook, name: str) -> None:
        with self._skipped_lock:
            self.skipped["failed"] += 1
        log.exception("hook failed hook=%s method=%s", type(hook).__name__, name)


def installed() -> list[Hook]:
    """Create one object of each installed hook class; raises what their constructors raise."""
    return [point.load()() for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]


def start(hooks: Sequence[Hook], options: HooksOptions, post: Post) -> Hooks:
    """Start the threads of the hooks. The broker never waits for these threads to end, because a hook may hang."""
    busy = StoreError(f"hooks.waiting_max={options.waiting_max} calls of hooks wait")
    return Hooks(hooks, options, Workers("hooks", options.threads, post, options.waiting_max, busy))


def _overrides(hook: Hook, name: str) -> bool:
    return getattr(type(hook), name) is not getattr(Hook, name)


def _refusal_or(work: Callable[[], T]) -> T | Refuse:
    try:
        return work()
    except Refuse as refusal:
        return refusal
