"""Hooks around requests: what they see, change and refuse, and that a hook which fails or hangs loses no message."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest

from duolog.bridge.config import HooksOptions
from duolog.bridge.hooks import (
    Consumed,
    Hook,
    Hooks,
    Refuse,
    Request,
    ResponseStatus,
    Send,
    Sent,
    start,
)
from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.requests.hooked_connection import HookedConnection
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import batch, flags
from duolog.protocol.rocketmq.messages.batch import Part
from duolog.protocol.rocketmq.messages.compression import deflate_body
from tests.kit.core import UNANSWERED_MAX
from tests.kit.threads import ManualThreads
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies

TIMEOUT_MS = 100


class Auditor(Hook):
    """Records the calls that it gets."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def before_request(self, request: Request) -> None:
        self.calls.append(("before", request.name))

    def after_request(self, request: Request, outcome: ResponseStatus) -> None:
        self.calls.append(("after", request.name, outcome.code))

    def after_send(self, sends: Sequence[Send], sent: Sent) -> None:
        self.calls.append(([each.body for each in sends], sent.queue_id, sent.offset, sent.outcome.code))

    def consumed(self, consumed: Consumed) -> None:
        self.calls.append((consumed.group, consumed.offset, consumed.next_offset))


class Censor(Hook):
    """Changes and refuses messages."""

    def before_send(self, send: Send) -> Send | None:
        if b"secret" in send.body:
            raise Refuse("no secrets here")
        if b"rude" in send.body:
            return replace(send, body=b"polite", properties={**send.properties, "WAS": "rude"})
        return None


class Broken(Hook):
    def before_request(self, request: Request) -> None:
        raise ValueError("of the hook itself")

    def before_send(self, send: Send) -> Any:
        return "not a Send"


class Hooked:
    """An broker whose clients pass these hooks; worker threads work when asked to."""

    def __init__(self, *hooks: Hook) -> None:
        self.broker, self.threads = RocketMQBroker(), ManualThreads()
        self.hooks = Hooks(hooks, HooksOptions(timeout_ms=TIMEOUT_MS), self.threads)
        self.topic = self.broker.topic(queues=1)
        self.client = self.broker.connect(HookedConnection(self.broker.rocketmq_connections, self.hooks))

    def send(self, body: bytes, **fields: object) -> Any:
        assert self.client.send(body=body, **fields) is None, "the request waits for its hooks"
        return self.worked()

    def worked(self) -> Any:
        """The answer to the last request, when the threads have done their work."""
        self.threads.run()
        self.broker.settle()
        answer = self.client.last_answer()
        self.threads.run()
        return answer

    def stored(self) -> list[bytes]:
        answer = Client.pull(self.broker.connect(), 0)
        return bodies(answer) if answer is not None and answer.code == 0 else []


def test_after_hooks_get_the_outcomes_of_requests() -> None:
    auditor = Auditor()
    hooked = Hooked(auditor)
    assert hooked.send(b"one").code == 0
    hooked.client.pull(0)
    assert bodies(hooked.worked()) == [b"one"]
    assert auditor.calls == [
        ("before", "SEND_MESSAGE"),
        ("after", "SEND_MESSAGE", 0),
        ([b"one"], 0, 0, 0),
        ("before", "PULL_MESSAGE"),
        ("after", "PULL_MESSAGE", 0),
        ("billing", 0, 1),
    ]


@pytest.mark.parametrize("compressed", [False, True])
def test_before_hook_changes_a_message(compressed: bool) -> None:
    hooked = Hooked(Censor())
    kind = flags.COMPRESSION_ZLIB
    if compressed:
        answer = hooked.send(deflate_body(b"rude", kind), sysFlag=flags.COMPRESSED | kind)
    else:
        answer = hooked.send(b"rude")
    assert answer.code == 0
    assert hooked.send(b"kind").code == 0
    assert hooked.stored() == [b"polite", b"kind"]


def test_before_hook_changes_messages_of_a_batch() -> None:
    hooked = Hooked(Censor())
    parts = [Part(0, body, b"") for body in (b"a", b"rude", b"b")]
    assert hooked.send(batch.encode(parts), batch=True).code == 0
    assert hooked.stored() == [b"a", b"polite", b"b"]


def test_before_hook_refuses_a_message_and_the_next_one_is_stored() -> None:
    auditor = Auditor()
    hooked = Hooked(Censor(), auditor)
    refused = hooked.send(b"a secret")
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "no secrets here")
    assert ("after", "SEND_MESSAGE", ResponseCode.NO_PERMISSION) in auditor.calls
    assert ([b"a secret"], -1, -1, ResponseCode.NO_PERMISSION) in auditor.calls
    assert hooked.send(b"fine").code == 0
    assert hooked.stored() == [b"fine"]


def test_hook_that_fails_is_passed_over_and_counted() -> None:
    hooked = Hooked(Broken(), Censor())
    assert hooked.send(b"rude").code == 0
    assert hooked.stored() == [b"polite"], "the other hook had its say"
    assert hooked.hooks.skipped == {"failed": 2}


def test_request_goes_on_without_a_hook_that_is_late() -> None:
    hooked = Hooked(Censor())
    assert hooked.client.send(body=b"rude") is None
    assert hooked.client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0) is None, "it has hooks of its own"
    hooked.broker.clock.pass_ms(TIMEOUT_MS)
    hooked.hooks.advance(hooked.broker.clock.mono_ms())
    hooked.broker.settle()
    assert hooked.stored() == [b"rude"]
    assert hooked.hooks.skipped == {"late": 2}
    hooked.worked()
    assert hooked.stored() == [b"rude"], "what the hook says at last counts for nothing"


def test_requests_that_nobody_answers_are_not_kept_for_ever() -> None:
    """An invalid verdict is not answered. No hook is called for an answer whose request was too long ago."""
    auditor = Auditor()
    hooked = Hooked(auditor)
    verdict = {
        "producerGroup": "shop", "tranStateTableOffset": 0, "commitLogOffset": 0, "msgId": "", "commitOrRollback": 0
    }  # fmt: skip
    for _ in range(UNANSWERED_MAX + 1):
        hooked.client.ask(RequestCode.END_TRANSACTION, **verdict)
        assert hooked.worked() is None
    auditor.calls.clear()
    for opaque in (1, 2):
        asked = remoting.request(RequestCode.END_TRANSACTION, opaque, {})
        hooked.client.connection.reply(asked, Answer(remoting.encode(remoting.response(asked))))
        hooked.threads.run()
    assert auditor.calls == [("after", "END_TRANSACTION", 0)]
    assert hooked.send(b"one").code == 0


def test_malformed_send_is_answered_as_without_hooks() -> None:
    hooked = Hooked(Censor())
    answer = hooked.send(b"no batch", batch=True)
    assert (answer.code, hooked.stored()) == (ResponseCode.SYSTEM_ERROR, [])


def test_client_that_leaves_while_its_hooks_work_disturbs_nobody() -> None:
    hooked = Hooked(Censor(), Auditor())
    hooked.client.send(body=b"kind")
    hooked.client.close()
    hooked.threads.run()
    assert hooked.stored() == []


def test_calls_of_hooks_beyond_those_that_may_wait_are_skipped() -> None:
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    hooks = start([], HooksOptions(waiting_max=3, threads=1), posted.put)
    is_running, may_go_on = threading.Event(), threading.Event()

    def block() -> None:
        is_running.set()
        may_go_on.wait()

    hooks.after(block)
    is_running.wait()
    for _ in range(5):
        hooks.after(lambda: None)
    may_go_on.set()
    for _ in range(6):
        posted.get(timeout=60)()
    assert hooks.skipped == {"busy": 2}
