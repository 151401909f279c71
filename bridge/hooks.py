"""Hooks: Python code of the broker's operator that is called around the requests of RocketMQ clients.

    before_request ─> before_send ─> the handler ─> the answer leaves ─> after_request ─> after_send | consumed
       may refuse      may change,                                          are told; no request waits
                       may refuse

A hook is a class derived from `Hook`, found through the entry points of the group `duolog.hooks` of installed
packages, made once at the start, and called in worker threads. Before-hooks have `hooks.timeout_ms` for all of them
together; only the request that they are about waits. A hook that raises is passed over, and a request whose time is up
goes on as if there were none: logged, counted, what it changed dropped. With no hook installed requests do not pass
here at all.

What RocketMQ's brokers offer as RPCHook, SendMessageHook and ConsumeMessageHook.
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
    """Raised by a before-hook: the client gets NO_PERMISSION and this text."""


# -- What hooks are given


@dataclass(frozen=True, slots=True)
class Request:
    code: int  # RequestCode.java
    name: str  # Its name there.
    client: str  # host:port
    fields: Mapping[str, str]  # The header's, as the client spelled them.


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int  # ResponseCode.java; 0 is success.
    remark: str


@dataclass(frozen=True, slots=True)
class Send:
    """One message on its way in, of a batch each; a before-hook changes it by `dataclasses.replace(send, ...)`."""

    topic: str
    group: str  # The producer's.
    client: str
    body: bytes  # As the sender's code gave it, not compressed.
    properties: Mapping[str, str]  # TAGS, KEYS, UNIQ_KEY and the user's own.


@dataclass(frozen=True, slots=True)
class Sent:
    outcome: Outcome
    message_id: str  # Of a batch all, joined by commas; "" if it was refused.
    queue_id: int
    offset: int  # Of the first; -1 if it was refused.


@dataclass(frozen=True, slots=True)
class Consumed:
    """Messages were handed to a consumer; what it made of them is not known."""

    topic: str
    group: str
    client: str
    queue_id: int
    offset: int
    next_offset: int
    body_bytes: int


class Hook:
    """Derive from it and override what is of interest. Methods may be called in several threads at a time."""

    def before_request(self, request: Request) -> None:
        """A request came; raise Refuse to refuse it."""

    def before_send(self, send: Send) -> Send | None:
        """A message came; return another one to store that in its place, raise Refuse to refuse it."""

    def after_request(self, request: Request, outcome: Outcome) -> None:
        """It was answered."""

    def after_send(self, sends: Sequence[Send], sent: Sent) -> None:
        """A message, or a batch, was stored or refused."""

    def consumed(self, consumed: Consumed) -> None:
        """A pull was answered with messages."""


# -- Calling them


class Hooks:
    """The hooks that are installed, their threads and their deadlines. Times are monotonic milliseconds."""

    def __init__(self, hooks: Sequence[Hook], options: HooksOptions, threads: Executor) -> None:
        self._hooks = {name: [each for each in hooks if _overrides(each, name)] for name in NAMES}
        self._timeout_ms = options.timeout_ms
        self._threads = threads
        self._waiting: Wheel[Callable[[], None]] = Wheel()
        self.skipped: Counter[str] = Counter()  # by why: failed, late, busy
        self._failing = Lock()  # Hooks may fail in several threads at a time.

    def has(self, *names: str) -> bool:
        return any(self._hooks[name] for name in names)

    def before(self, work: Callable[[], T], then: Callable[[T | Refuse | None], None], mono_ms: int) -> None:
        """Do `work` in a thread; `then` is called once in the loop: with what it gave, a Refuse, or None if skipped."""
        waiting = self._waiting.add(mono_ms + self._timeout_ms, lambda: self._skip("late", then))

        def done(outcome: T | Refuse | Failure) -> None:
            if not self._waiting.cancel(waiting):
                return  # Too late: the request went on without.
            if isinstance(outcome, StoreError | OSError):
                self._skip("busy", then)
            else:
                then(outcome)

        self._threads.submit(lambda: _refusal_or(work), done)

    def after(self, work: Callable[[], None]) -> None:
        """Do `work` in a thread; no request waits for it."""

        def done(outcome: Failure | None) -> None:
            if outcome is not None:
                self._skip("busy", lambda _: None)

        self._threads.submit(work, done)

    def call(self, name: str, *arguments: Any) -> None:
        """Call that method of all hooks; in a thread."""
        for hook in self._hooks[name]:
            try:
                getattr(hook, name)(*arguments)
            except Refuse:
                raise
            except Exception:  # noqa: BLE001 - somebody else's code may raise anything
                self._failed(hook, name)

    def changed(self, send: Send) -> Send:
        """Let all before_send hooks see the message, each what the one before it gave; in a thread."""
        for hook in self._hooks["before_send"]:
            try:
                given = hook.before_send(send)
                if given is not None and not isinstance(given, Send):
                    raise TypeError(f"before_send returned {type(given).__name__}, not Send or None")
            except Refuse:
                raise
            except Exception:  # noqa: BLE001 - somebody else's code may raise anything
                self._failed(hook, "before_send")
            else:
                send = given or send
        return send

    # -- Deadlines

    def next_deadline_ms(self) -> int | None:
        return self._waiting.next_deadline_ms()

    def advance(self, mono_ms: int) -> None:
        for skip in self._waiting.advance(mono_ms):
            skip()  # It raises nothing: what goes on without its hooks contains its own faults.

    def _skip(self, why: str, then: Callable[[Any], None]) -> None:
        self.skipped[why] += 1
        log.warning("skipped why=%s", why)
        then(None)

    def _failed(self, hook: Hook, name: str) -> None:
        with self._failing:
            self.skipped["failed"] += 1
        log.exception("failed hook=%s method=%s", type(hook).__name__, name)


def installed() -> list[Hook]:
    """Make one of each hook that an installed package offers; raises what their constructors raise."""
    return [point.load()() for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]


def start(hooks: Sequence[Hook], options: HooksOptions, post: Post) -> Hooks:
    """Give the hooks threads of their own. They are never waited for: one may hang in somebody else's code."""
    busy = StoreError(f"hooks.waiting_max={options.waiting_max} calls of hooks wait")
    return Hooks(hooks, options, Workers("hooks", options.threads, post, options.waiting_max, busy))


def _overrides(hook: Hook, name: str) -> bool:
    return getattr(type(hook), name) is not getattr(Hook, name)


def _refusal_or(work: Callable[[], T]) -> T | Refuse:
    try:
        return work()
    except Refuse as refusal:
        return refusal
