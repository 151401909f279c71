"""Half messages of Kafka's producers: their stored frames, and the effects of verdicts."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from duolog.bridge.config import (
    ConfigError,
    Options,
    TxnOptions,
    load,
)
from duolog.bridge.http.api.transactions import UnknownTransaction, transaction, transactions
from duolog.bridge.http.api.verdicts import decide_by_id
from duolog.bridge.transactions.op_messages import HalfDecision
from duolog.protocol.kafka import batch_builder, record_reader
from duolog.protocol.kafka.record_batch import InvalidBatch
from duolog.txn.half_verdicts import HalfVerdict
from tests.kit.core import ManualCore
from tests.unit.bridge.batches import batch

URL = "http://shop.example/checks/7"
TXN = TxnOptions(check_urls="http://shop.example/checks/ https://other.example/", half_ids_max=4)
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


def core(disk: Any = None) -> ManualCore:
    made = ManualCore(Options(txn=TXN), disk)
    made.topic()
    return made


def send(made: ManualCore, *ids: str | None, url: str = "", producer: Any = (-1, -1, -1), **headers: str) -> int:
    """Send one batch with a record for each id; None: an ordinary record."""
    builder = batch_builder.BatchBuilder()
    for number, id in enumerate(ids):
        own = [("TRAN_MSG_ID", id.encode())] if id is not None else []
        own += [("TRAN_MSG_CHECK_URL", url.encode())] if url else []
        own += [(name, value.encode()) for name, value in headers.items()]
        builder.append(number, made.clock.now_ms(), b"key", f"value {id}".encode(), [*own, ("city", b"Bern")])
    sent = builder.finish(0, -1, producer=producer)
    offset = made.publisher.publish_batch(made.topic(), 0, sent, made.clock.now_ms()).base_offset
    made.settle()
    return offset


def seen(made: ManualCore, name: str = "orders") -> list[Any]:
    queue = made.topics.get(name).queues[0]
    found = made.store.reader.read(queue, queue.start_offset, max_bytes=1 << 24, until=queue.visible_end)
    return [record for each in found for record in record_reader.records(each.frame, 1 << 20)]


def decide(made: ManualCore, id: str, verdict: str, topic: str = "orders") -> Any:
    """Return the answer of the HTTP port: (status, text)."""
    try:
        answer, promise = asyncio.run(
            decide_by_id(made.half_decisions, topic, id, b'{"verdict": "%s"}' % verdict.encode())
        )
    except web.HTTPException as error:
        return error.status, error.text
    made.settle()
    assert made.store.kept(promise)
    return 200, answer["state"]


@pytest.mark.parametrize(("configs", "offsets"), [({}, 1), ({"message_expired": "drop"}, 0)])
def test_half_message_that_has_expired_is_committed_unless_its_topic_drops_it(
    configs: dict[str, str], offsets: int
) -> None:
    made = core()
    topic = made.topic("codes", **configs)
    builder = batch_builder.BatchBuilder()
    builder.append(0, 1, b"k", b"v", [("TRAN_MSG_ID", b"a"), ("EXPIRE_AFTER_MS", b"50")])
    expires_ms = made.clock.now_ms() + 50
    made.publisher.publish_batch(topic, 0, builder.finish(0, -1), made.clock.now_ms())
    made.settle()
    made.pass_ms(50)
    assert decide(made, "a", "commit", "codes") == (200, "committed")
    assert topic.queues[0].visible_end == offsets
    assert [[*record.headers] for record in seen(made, "codes")] == [
        [("EXPIRE_AT_MS", str(expires_ms).encode())]
    ] * offsets


def test_half_message_is_seen_when_it_is_committed_and_not_before() -> None:
    made = core()
    assert send(made, "a", None, "b") == -1
    assert [record.value for record in seen(made)] == [b"value None"]
    assert [record.value for record in seen(made, HALF)] == [b"value a", b"value b"]
    assert decide(made, "b", "commit") == (200, "committed")
    plain, committed = seen(made)
    assert (committed.key, committed.value, list(committed.headers)) == (b"key", b"value b", [("city", b"Bern")])
    assert committed.timestamp_ms == plain.timestamp_ms
    assert decide(made, "a", "rollback") == (200, "rolled back")
    assert len(seen(made)) == 2


@pytest.mark.parametrize("end", ["", "kill", "close"])
def test_verdict_may_be_repeated_but_not_changed(end: str) -> None:
    made = core()
    send(made, "a", "b", "c")
    decide(made, "a", "commit")
    decide(made, "b", "rollback")
    if end == "close":
        made.store.close(made.clock.now_ms())
    if end:
        made = core(made.disk.after_kill())
    before = seen(made)
    assert decide(made, "a", "commit") == (200, "committed")
    assert decide(made, "b", "rollback") == (200, "rolled back")
    assert decide(made, "a", "rollback")[0] == 409
    assert decide(made, "b", "commit")[0] == 409
    assert decide(made, "nobody", "commit")[0] == 404
    assert decide(made, "a", "commit", topic="none")[0] == 404
    assert decide(made, "c", "perhaps")[0] == 400
    assert seen(made) == before
    assert len(made.halves.state) == len(made.halves.ids) == 1


@pytest.mark.parametrize(
    ("topic", "id", "body", "status", "says"),
    [
        ("orders", "open", b"", 400, "expected"),
        ("orders", "open", b"commit", 400, "expected"),
        ("orders", "open", b"[" * 100_000, 400, "expected"),
        ("orders", "open", b"\xff", 400, "expected"),
        ("orders", "open", b'{"verdict": 8}', 400, "expected"),
        ("orders", "open", b'{"verdict": "unknown"}', 400, "expected"),
        ("orders", "open", b'{"verdict": "COMMIT"}', 400, "expected"),
        ("orders", "open", b'{"verdict": "commit", "why": ""}', 400, "expected"),
        ("orders", "nobody", None, 404, "there is no half message 'nobody' of topic 'orders'"),
        ("orders", "0", None, 404, "there is no half message '0'"),
        ("orders", "x" * 5000, None, 404, "there is no half message"),
        ("none", "open", None, 404, "there is no topic none"),
        (HALF, "open", None, 404, "there is no half message"),
        ("orders", "rolled-back", b'{"verdict": "commit"}', 409, "was rolled back"),
        ("orders", "committed", b'{"verdict": "rollback"}', 409, "was committed"),
        ("orders", "given-up", None, 409, "was given up"),
        ("gone", "of-gone", b'{"verdict": "commit"}', 409, "there is no topic gone any more"),
    ],
)
def test_bad_verdict_is_answered_with_its_reason_and_changes_nothing(
    topic: str, id: str, body: bytes | None, status: int, says: str
) -> None:
    made = core()
    gone = made.topic("gone")
    send(made, "open", "committed", "rolled-back", "given-up")
    decide(made, "committed", "commit")
    decide(made, "rolled-back", "rollback")
    given_up = made.halves.ids.offset_of("orders", "given-up")
    assert given_up is not None
    made.halves.end(given_up, HalfDecision(HalfVerdict.GIVEN_UP, "orders", 0), made.clock.now_ms())
    made.publisher.publish_batch(gone, 0, batch([b"x"], headers=[("TRAN_MSG_ID", b"of-gone")]), made.clock.now_ms())
    made.topics.delete(gone, made.clock.now_ms())
    made.settle()
    before, end_position = list(made.halves.state.open()), made.store.next_position
    for each in (b'{"verdict": "commit"}', b'{"verdict": "rollback"}') if body is None else (body,):
        with pytest.raises(web.HTTPException) as raised:
            asyncio.run(decide_by_id(made.half_decisions, topic, id, each))
        assert (raised.value.status, says in (raised.value.text or "")) == (status, True), raised.value.text
    assert (list(made.halves.state.open()), made.store.next_position) == (before, end_position)


@pytest.mark.parametrize("ids", [("a",), ("b", "b"), ("c", "a")])
def test_id_is_unique_within_its_topic(ids: tuple[str, ...]) -> None:
    made = core()
    send(made, "a")
    decide(made, "a", "commit")
    with pytest.raises(InvalidBatch, match="TRAN_MSG_ID is taken in topic orders"):
        send(made, *ids)
    assert len(seen(made, HALF)) == 1


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ({"TRAN_MSG_CHECK_URL": "http://evil.example/"}, "none of txn.check_urls"),
        ({"TRAN_MSG_CHECK_URL": "http://shop.example/checks"}, "none of txn.check_urls"),
        ({"TRAN_MSG_CHECK_URL": "x" * 3000}, "is no text of"),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, "is no number of seconds"),
    ],
)
def test_what_cannot_be_is_refused_whole(headers: dict[str, str], complaint: str) -> None:
    made = core()
    with pytest.raises(InvalidBatch, match=complaint):
        send(made, "a", None, **headers)
    assert seen(made) == seen(made, HALF) == []


@pytest.mark.parametrize("id", ["", "x" * 256, "two\nlines"])
def test_id_is_text(id: str) -> None:
    with pytest.raises(InvalidBatch, match="TRAN_MSG_ID is no text of 1 to 255 bytes"):
        send(core(), id)


def test_repeated_batch_of_an_idempotent_producer_is_no_second_half_message() -> None:
    made = core()
    assert send(made, "a", "b", producer=(7, 0, 0)) == -1
    assert send(made, "a", "b", producer=(7, 0, 0)) == -1
    assert send(made, None, producer=(7, 0, 2)) == 0
    assert len(seen(made, HALF)) == 2


def test_delayed_it_is_seen_at_the_later_of_commit_and_due_time() -> None:
    made = core()
    send(made, "a", "b", TIMER_DELAY_MS="5000")
    decide(made, "a", "commit")
    assert seen(made) == []
    made.pass_ms(5_000)
    assert [record.value for record in seen(made)] == [b"value a"]
    decide(made, "b", "commit")
    assert [record.value for record in seen(made)] == [b"value a", b"value b"]


def test_half_message_of_a_deleted_topic_stays_open() -> None:
    made = core()
    send(made, "a")
    made.topics.delete(made.topic(), made.clock.now_ms())
    assert decide(made, "a", "commit")[0] == 409
    assert len(made.halves.state) == 1


def test_transaction_and_half_message_exclude_each_other() -> None:
    made = core()
    sent = batch([b"x"], headers=[("TRAN_MSG_ID", b"a")], producer=(7, 0, 0), is_transactional=True)
    with pytest.raises(Exception, match="a record of a transaction is no half message"):
        made.publisher.publish_batch(made.topic(), 0, sent, made.clock.now_ms())


def test_listing_shows_whom_it_waits_for() -> None:
    made = core()
    send(made, "a", url=URL)
    send(made, "b")
    made.clock.pass_ms(10)
    first, second = transactions(made.http_context(), {})
    assert (first["kind"], first["id"], first["state"], first["producer"]) == ("kafka", "orders/a", "half", URL)
    assert (first["age_ms"], first["checks"]) == (10, 0)
    assert first["waits_for"] == "its producer's verdict, asked for in 6 s"
    assert (second["id"], second["producer"], second["waits_for"]) == ("orders/b", "", "a verdict")
    assert transaction(made.http_context(), "orders/b") == second
    assert decide(made, "b", "commit") == (200, "committed")
    for unknown in ("orders/b", "orders/c", "orders", "none/a"):
        with pytest.raises(UnknownTransaction, match=f"there is no transactional id {unknown}"):
            transaction(made.http_context(), unknown)


@pytest.mark.parametrize("urls", ["http://shop.example", "shop.example/", "http://a@b/", "http://ok/ ftp://no/"])
def test_allowed_urls_end_their_host(urls: str) -> None:
    with pytest.raises(ConfigError, match=r"txn\.check_urls"):
        load(None, {"txn.check_urls": urls})
