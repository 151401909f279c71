"""Sends each request of a transaction, from each producer, in each state, and compares the outcome with a table.

The table has what Apache Kafka does (TransactionCoordinator.scala; a running 4.3.1 answered where that left doubt).

A refused request must have changed nothing; after each row a broker that recovers from the log is in the same state.
"""

from collections.abc import Callable
from typing import Any

import pytest

from duolog.bridge.config import DAY_MS, TxnOptions
from duolog.bridge.data.publishing.produced_batches import BatchOrigin
from duolog.bridge.records.groups import CommittedOffset
from duolog.protocol.kafka import batch_builder, marker, record_batch
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.store.errors import OffsetOutOfRange
from duolog.txn.coordinator import (
    EPOCH_LAST,
    TABLE,
    Producer,
    ProducerMatch,
    RequestOutcome,
    State,
    Transaction,
    TransactionRequest,
)
from duolog.txn.requests import InvalidTransactionState
from tests.kit.core import ManualCore
from tests.unit.bridge.batches import batch
from tests.unit.bridge.kafka.bench import SMALL_STORE, Client, KafkaBench
from tests.unit.bridge.transactions.test_transaction_histories import committed_for_kafka, picture

ID = "payments"
TIMEOUT_MS = 60_000
GROUP = "group"
NONE = ErrorCode.none


class ProducerSession:
    """One client that sends the requests of a producer; `producer` is the id and epoch that it names."""

    def __init__(self) -> None:
        self.bench = KafkaBench()
        self.bench.topic("orders", 3)
        self.client: Client = self.bench.connect()
        self.producer = Producer(5, 0)  # An id that the broker has not given out.
        self.sequence = 0

    def init(self, version: int = 5, timeout_ms: int = TIMEOUT_MS, claimed: Producer | None = None) -> Any:
        who = {"producer_id": claimed.id, "producer_epoch": claimed.epoch} if claimed else {}
        return self.client.ask(
            ApiKey.INIT_PRODUCER_ID, version, transactional_id=ID, transaction_timeout=timeout_ms, **who
        )

    def begin(self) -> None:
        """Initialize, and write in version 2."""
        empty(self)
        assert self.write(12) is NONE

    def write(self, version: int, producer: Producer | None = None, partition: int = 0) -> ErrorCode:
        who = producer or self.producer
        frame = batch([b"a"], producer=(*who, self.sequence), is_transactional=True)
        asked = {"index": partition, "records": bytes(frame)}
        answer = self.client.ask(
            ApiKey.PRODUCE,
            version,
            transactional_id=ID,
            acks=-1,
            topic_data=[{"name": "orders", "partition_data": [asked]}],
        )
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        self.sequence += code is NONE
        return code

    def add(self, version: int, producer: Producer, partition: int = 1, topic: str = "orders") -> ErrorCode:
        answer = self.client.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[{"name": topic, "partitions": (partition,)}],
        )
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def add_group(self, version: int, producer: Producer) -> ErrorCode:
        who = {"producer_id": producer.id, "producer_epoch": producer.epoch, "group_id": GROUP}
        return ErrorCode(self.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, transactional_id=ID, **who).error_code)

    def commit_offset(self, version: int, producer: Producer, **who: Any) -> ErrorCode:
        place = {"partition_index": 0, "committed_offset": 17, "committed_metadata": ""}
        answer = self.client.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            transactional_id=ID,
            group_id=GROUP,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            topics=[{"name": "orders", "partitions": [place]}],
            **({"generation_id": -1, "member_id": "", "group_instance_id": None} | who if version >= 3 else {}),
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end(self, version: int, producer: Producer, *, commit: bool) -> Any:
        who = {"producer_id": producer.id, "producer_epoch": producer.epoch}
        return self.client.ask(ApiKey.END_TXN, version, transactional_id=ID, committed=commit, **who)

    @property
    def known(self) -> Any:
        return self.bench.transactions.coordinator.get(ID)


# -- The states, and how a producer gets there. Its session then names the newest epoch, except for "before".


def empty(session: ProducerSession) -> None:
    """Initialize often enough for older epochs of the producer to exist."""
    answer = [session.init() for _ in range(3)][-1]
    session.producer = Producer(answer.producer_id, answer.producer_epoch)


def added_group(session: ProducerSession, group: str) -> ErrorCode:
    answer = session.client.ask(
        ApiKey.ADD_OFFSETS_TO_TXN, 4, transactional_id=ID, producer_id=session.producer.id,
        producer_epoch=session.producer.epoch, group_id=group,
    )  # fmt: skip
    return ErrorCode(answer.error_code)


def ended(session: ProducerSession, version: int, *, commit: bool) -> None:
    session.begin()
    answer = session.end(version, session.producer, commit=commit)
    assert answer.error_code is NONE
    if version >= 5:
        session.producer = Producer(answer.producer_id, answer.producer_epoch)
        session.sequence = 0


def overdue(session: ProducerSession) -> None:
    session.begin()
    session.bench.pass_ms(TIMEOUT_MS)
    session.bench.transactions.expire(session.bench.clock.now_ms())
    session.bench.settle()
    session.producer = session.known.producer
    session.sequence = 0


def resumed(session: ProducerSession) -> None:
    """Initialize as a producer that goes on after an error; its previous epoch may repeat the request."""
    empty(session)
    answer = session.init(claimed=session.producer)
    session.producer = Producer(answer.producer_id, answer.producer_epoch)


def resumed_and_begun(session: ProducerSession) -> None:
    resumed(session)
    assert session.write(12) is NONE


STATES: dict[str, Callable[[ProducerSession], None]] = {
    "unknown": lambda session: None,
    "Empty": empty,
    "Ongoing": ProducerSession.begin,
    "commit 1": lambda session: ended(session, 4, commit=True),
    "abort 1": lambda session: ended(session, 4, commit=False),
    "commit 2": lambda session: ended(session, 5, commit=True),
    "abort 2": lambda session: ended(session, 5, commit=False),
    "overdue": overdue,
    "resumed": resumed,
    "resumed, Ongoing": resumed_and_begun,
}

# -- What is asked, by whom


def newest(session: ProducerSession) -> Producer:
    return session.producer


def before(session: ProducerSession) -> Producer:
    return Producer(session.producer.id, session.producer.epoch - 1)


def older(session: ProducerSession) -> Producer:
    return Producer(session.producer.id, session.producer.epoch - 2)


def unknown_producer(session: ProducerSession) -> Producer:
    return Producer(session.producer.id + 1000, session.producer.epoch)


Asked = Callable[[ProducerSession, Producer], ErrorCode]
REQUESTS: dict[str, Asked] = {
    "init": lambda session, who: session.init().error_code,
    "resume": lambda session, who: session.init(claimed=who).error_code,
    "resume 3": lambda session, who: session.init(3, claimed=who).error_code,
    "add": lambda session, who: session.add(3, who),
    "add 1": lambda session, who: session.add(1, who),
    "group": lambda session, who: session.add_group(4, who),
    "group 1": lambda session, who: session.add_group(1, who),
    "write 11": lambda session, who: session.write(11, who),
    "elsewhere": lambda session, who: session.write(11, who, partition=2),  # Not added to the transaction.
    "write 12": lambda session, who: session.write(12, who),
    "offset 4": lambda session, who: session.commit_offset(4, who),
    "offset 5": lambda session, who: session.commit_offset(5, who),
    "commit 4": lambda session, who: session.end(4, who, commit=True).error_code,
    "abort 4": lambda session, who: session.end(4, who, commit=False).error_code,
    "commit 1": lambda session, who: session.end(1, who, commit=True).error_code,
    "commit 5": lambda session, who: session.end(5, who, commit=True).error_code,
    "abort 5": lambda session, who: session.end(5, who, commit=False).error_code,
}

# In the order of STATES: the error code, or the state that follows and by how much the epoch rises.
# E, O, C, A are Kafka's Empty, Ongoing, CompleteCommit, CompleteAbort; "-" is left out, for there is no producer yet.
_ROWS = """
init      newest    E0  E1  E1  E1  E1  E1  E1  E1  E1  E1
resume    newest    -   E1  E1  E1  E1  E1  E1  E1  E1  E1
resume    before    -   90  90  90  90  E0  E0  90  E0  90
resume    older     -   90  90  90  90  90  90  90  90  90
resume    unknown   -   90  90  90  90  90  90  90  90  90
resume 3  older     -   47  47  47  47  47  47  47  47  47
add       newest    49  O0  O0  O0  O0  O0  O0  O0  O0  O0
add       before    -   90  90  90  90  90  90  90  90  90
add       unknown   -   49  49  49  49  49  49  49  49  49
add 1     before    -   47  47  47  47  47  47  47  47  47
group     newest    49  O0  O0  O0  O0  O0  O0  O0  O0  O0
group     before    -   90  90  90  90  90  90  90  90  90
group 1   before    -   47  47  47  47  47  47  47  47  47
write 11  newest    49  48  O0  48  48  48  48  48  48  O0
write 11  before    -   47  47  47  47  47  47  47  47  47
elsewhere newest    49  48  48  48  48  48  48  48  48  48
write 12  newest    49  O0  O0  O0  O0  O0  O0  O0  O0  O0
write 12  before    -   47  47  47  47  47  47  47  47  47
write 12  unknown   -   49  49  49  49  49  49  49  49  49
offset 4  newest    49  48  48  48  48  48  48  48  48  48
offset 4  before    -   47  47  47  47  47  47  47  47  47
offset 5  newest    49  O0  O0  O0  O0  O0  O0  O0  O0  O0
offset 5  before    -   47  47  47  47  47  47  47  47  47
commit 4  newest    49  48  C0  C0  48  C0  48  48  48  C0
commit 4  before    -   90  90  90  90  90  90  90  90  90
commit 4  unknown   -   49  49  49  49  49  49  49  49  49
commit 1  before    -   47  47  47  47  47  47  47  47  47
abort 4   newest    49  48  A0  48  A0  48  A0  A0  48  A0
abort 4   before    -   90  90  90  90  90  90  90  90  90
commit 5  newest    49  48  C1  48  48  48  48  48  48  C1
commit 5  before    -   90  90  C0  48  C0  48  48  90  90
commit 5  older     -   90  90  90  90  90  90  90  90  90
commit 5  unknown   -   49  49  49  49  49  49  49  49  49
abort 5   newest    49  A1  A1  A1  A1  A1  A1  A1  A1  A1
abort 5   before    -   90  90  48  A0  48  A0  A0  90  90
abort 5   older     -   90  90  90  90  90  90  90  90  90
"""
PRODUCERS = {"newest": newest, "before": before, "older": older, "unknown": unknown_producer}
_LETTERS = {"E": State.EMPTY, "O": State.ONGOING, "C": State.COMMITTED, "A": State.ABORTED}


def rows() -> list[Any]:
    found = []
    for line in _ROWS.strip("\n ").splitlines():
        asked, who, *results = line[:10].strip(), *line[10:].split()
        for state, result in zip(STATES, results, strict=True):
            if result != "-":
                found.append(pytest.param(asked, who, state, result, id=f"{asked} by {who} in {state}"))
    return found


@pytest.mark.parametrize(("asked", "who", "state", "result"), rows())
def test_each_request_in_each_state(asked: str, who: str, state: str, result: str) -> None:
    session = in_state(state)
    epoch = session.known.producer.epoch if session.known else 0
    unchanged = picture(session.bench)
    code = REQUESTS[asked](session, PRODUCERS[who](session))
    if result.isdigit():
        assert code is ErrorCode(int(result))
        assert picture(session.bench) == unchanged
    elif result[0] == "E" and who == "before":
        assert (code, session.known.producer.epoch) == (NONE, epoch), "a repeated request has the same answer"
        assert picture(session.bench) == unchanged
    else:
        assert code is NONE
        assert (session.known.state, session.known.producer.epoch - epoch) == (_LETTERS[result[0]], int(result[1]))
    session.bench.settle()
    assert picture(ManualCore(session.bench.options, session.bench.disk.after_kill(), SMALL_STORE)) == picture(
        session.bench
    )


@pytest.mark.slow
def test_rows_reach_each_entry_of_the_coordinators_table(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[tuple[TransactionRequest, ProducerMatch, State]] = set()
    judge = Transaction.judge

    def noted(
        transaction: Transaction[Any], ask: TransactionRequest, producer: Producer | None = None
    ) -> RequestOutcome:
        standing = ProducerMatch.CURRENT if producer is None else transaction.match(producer, ask)
        reached.add((ask, standing, transaction.state))
        return judge(transaction, ask, producer)

    monkeypatch.setattr(Transaction, "judge", noted)
    for state in STATES:
        shared = in_state(state)  # For the refused requests, because they change nothing.
        for asked, who, _, result in (row.values for row in rows() if row.values[2] == state):
            session = shared if result.isdigit() else in_state(state)
            REQUESTS[asked](session, PRODUCERS[who](session))
            if session is not shared:
                fence(session)
        fence(shared)
    assert reached >= TABLE.keys()


def in_state(state: str) -> ProducerSession:
    session = ProducerSession()
    STATES[state](session)
    return session


def fence(session: ProducerSession) -> None:
    if session.known is not None:
        session.bench.transactions.fence(session.known, session.bench.clock.now_ms())


# -- Readers


def fetch(session: ProducerSession, isolation: int, offset: int = 0, **values: Any) -> Any:
    asked = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    answer = session.client.ask(
        ApiKey.FETCH, 12, isolation_level=isolation, max_bytes=1 << 20, session_epoch=-1,
        topics=[{"topic": "orders", "partitions": [asked]}], **({"min_bytes": 1} | values),
    )  # fmt: skip
    return answer.responses[0].partitions[0] if answer is not None else None


def ends(session: ProducerSession, isolation: int) -> tuple[int, int]:
    """(last stable offset in Fetch, latest in ListOffsets)"""
    asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    topics = [{"name": "orders", "partitions": [asked]}]
    listed = session.client.ask(ApiKey.LIST_OFFSETS, 8, isolation_level=isolation, topics=topics)
    return fetch(session, isolation).last_stable_offset, listed.topics[0].partitions[0].offset


def test_readers_end_at_the_last_stable_offset_and_learn_what_was_aborted() -> None:
    session = ProducerSession()
    session.begin()
    first_producer = session.producer
    session.bench.write(session.bench.topics.get("orders"), b"behind it")
    assert ends(session, 1) == (0, 0)
    assert ends(session, 0) == (0, 2)
    assert not fetch(session, 1).records
    assert fetch(session, 1, offset=2).error_code is NONE, "between both ends is in range"
    assert fetch(session, 0).high_watermark == 2

    session.end(5, first_producer, commit=False)
    read = fetch(session, 1)
    assert read.last_stable_offset == read.high_watermark == 3
    aborted = [(each.producer_id, each.first_offset) for each in read.aborted_transactions]
    assert aborted == [(first_producer.id, 0)]
    assert len(record_batch.split(read.records)) == 3, "leaving it out is the client's"
    assert fetch(session, 1, offset=1).aborted_transactions == read.aborted_transactions, "it began before"
    assert fetch(session, 0).aborted_transactions is None
    assert ends(session, 1) == (3, 3)


def test_waiting_read_committed_fetch_is_completed_by_the_marker() -> None:
    session = ProducerSession()
    session.begin()
    reader = session.bench.connect()
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    number = reader.send(
        ApiKey.FETCH, 12, isolation_level=1, max_bytes=1 << 20, session_epoch=-1, min_bytes=60, max_wait=30_000,
        topics=[{"topic": "orders", "partitions": [asked]}],
    )  # fmt: skip
    session.write(12)
    assert reader.answer_to(number) is None
    session.bench.is_stalled = True
    ending = session.client.send(
        ApiKey.END_TXN, 5, transactional_id=ID, committed=True, producer_id=session.producer.id,
        producer_epoch=session.producer.epoch,
    )  # fmt: skip
    assert session.client.answer_to(ending) is None
    assert reader.answer_to(number) is None, "a marker that is not on the disk ends nothing"
    session.bench.is_stalled = False
    session.bench.settle()
    assert session.client.answer_to(ending).error_code is NONE
    assert len(record_batch.split(reader.answer_to(number).responses[0].partitions[0].records)) == 3


@pytest.mark.parametrize("goes", ["topic", "records"])
def test_cold_read_knows_the_transactions_that_were_aborted_when_it_began(goes: str) -> None:
    session = ProducerSession()
    session.begin()
    session.end(5, session.producer, commit=False)
    bench, topic = session.bench, session.bench.topics.get("orders")
    queue = topic.queues[0]
    for _ in range(20):
        bench.write(topic, bytes(50_000))
    bench.disk.cached = False
    reader = bench.connect()
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1, "current_leader_epoch": -1}
    number = reader.send(
        ApiKey.FETCH, 12, isolation_level=1, max_bytes=1, session_epoch=-1, min_bytes=1,
        topics=[{"topic": "orders", "partitions": [asked]}],
    )  # fmt: skip
    pull: Any = bench.reader.read_for_rocketmq(queue, topic, 0, 2, 1, queue.visible_end)
    pulled: list[Any] = []
    if goes == "topic":
        bench.topics.delete(topic, bench.clock.now_ms())
        bench.sweep()
    else:
        bench.store.retention.trim(queue, 2, bench.clock.now_ms())
        list(bench.transactions.tidy(bench.clock.now_ms()))
    assert bench.isolation.get(queue.key) is None
    assert reader.answer_to(number) is None
    pull.start(pulled.append)
    bench.reader_threads.run()
    bench.settle()
    answer = reader.answer_to(number).responses[0].partitions[0]
    if goes == "topic":
        assert [each.first_offset for each in answer.aborted_transactions] == [0]
        assert pulled[0].buffers == []
    else:
        assert answer.error_code is ErrorCode.offset_out_of_range
        assert isinstance(pulled[0], OffsetOutOfRange)


# -- Positions of groups


def fetched_offset(session: ProducerSession, *, stable: bool) -> tuple[ErrorCode, int]:
    groups = [{"group_id": GROUP, "topics": [{"name": "orders", "partition_indexes": (0,)}]}]
    answer = session.client.ask(ApiKey.OFFSET_FETCH, 8, groups=groups, require_stable=stable)
    found = answer.groups[0].topics[0].partitions[0]
    return found.error_code, found.committed_offset


@pytest.mark.parametrize(("version", "commit", "kept"), [(5, True, 17), (4, True, 17), (5, False, 3), (4, False, 3)])
def test_positions_become_the_groups_with_the_commit(version: int, commit: bool, kept: int) -> None:
    session = ProducerSession()
    empty(session)
    position = CommittedOffset(session.bench.topics.get("orders").key(0), 3)
    session.bench.group_offsets.commit(GROUP, [position], session.bench.clock.now_ms())
    if version < 5:
        assert session.add_group(3, session.producer) is NONE
    assert session.commit_offset(version, session.producer) is NONE
    assert fetched_offset(session, stable=False) == (NONE, 3)
    assert fetched_offset(session, stable=True) == (ErrorCode.unstable_offset_commit, -1)
    assert session.end(version, session.producer, commit=commit).error_code is NONE
    assert fetched_offset(session, stable=True) == (NONE, kept)


@pytest.mark.parametrize(
    ("who", "error"),
    [
        ({"generation_id": 4, "member_id": "m"}, ErrorCode.illegal_generation),
        ({"member_id": "m"}, NONE),  # The group has no members, and the request names no generation.
    ],
)
def test_positions_of_a_member_are_checked(who: dict[str, Any], error: ErrorCode) -> None:
    session = ProducerSession()
    empty(session)
    assert session.commit_offset(5, session.producer, **who) is error


def test_pending_offsets_are_deleted_with_their_group_and_their_topic() -> None:
    for gone in ("group", "topic"):
        session = ProducerSession()
        session.begin()
        session.commit_offset(5, session.producer)
        if gone == "group":
            session.bench.group_offsets.delete_group(GROUP, session.bench.clock.now_ms())
        else:
            session.bench.topics.delete(session.bench.topics.get("orders"), session.bench.clock.now_ms())
            session.bench.sweep()
        pending = 0 if gone == "group" else 1  # The group counts, too.
        assert session.bench.transactions.coordinator.pending_count == pending
        assert session.end(5, session.producer, commit=True).error_code is NONE
        assert not session.bench.group_offsets.all_of(GROUP)


def test_group_does_not_expire_while_a_transaction_holds_it() -> None:
    session = ProducerSession()
    positions, now_ms = session.bench.group_offsets, session.bench.clock.now_ms()
    positions.commit(GROUP, [CommittedOffset(session.bench.topics.get("orders").key(0), 3)], now_ms)
    session.begin()
    session.commit_offset(5, session.producer)
    list(positions.expire(now_ms + 365 * DAY_MS, session.bench.is_alive))
    assert session.end(5, session.producer, commit=True).error_code is NONE
    assert [each.offset for each in positions.all_of(GROUP).values()] == [17]
    list(positions.expire(now_ms + 1000 * DAY_MS, session.bench.is_alive))
    assert GROUP not in positions


# -- What is refused besides


@pytest.mark.parametrize(
    ("timeout_ms", "error"),
    [(0, 50), (-1, 50), (900_001, 50), (900_000, 0), (1, 0)],
)
def test_timeout_out_of_range_is_refused(timeout_ms: int, error: int) -> None:
    session = ProducerSession()
    assert session.init(timeout_ms=timeout_ms).error_code is ErrorCode(error)
    assert (session.known is None) == bool(error)


def test_one_unknown_partition_refuses_all() -> None:
    session = ProducerSession()
    empty(session)
    topics = [{"name": "orders", "partitions": (0, 9)}, {"name": "nowhere", "partitions": (0,)}]
    answer = session.client.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN, 3, v3_and_below_transactional_id=ID, v3_and_below_topics=topics,
        v3_and_below_producer_id=session.producer.id, v3_and_below_producer_epoch=session.producer.epoch,
    )  # fmt: skip
    codes = [each.partition_error_code for topic in answer.results_by_topic_v3_and_below
             for each in topic.results_by_partition]  # fmt: skip
    missing = ErrorCode.unknown_topic_or_partition
    assert codes == [ErrorCode.operation_not_attempted, missing, missing]
    assert session.known.state is State.EMPTY


def test_batch_outside_of_the_open_transaction_of_its_producer_is_refused() -> None:
    session = ProducerSession()
    session.begin()
    bench, topic = session.bench, session.bench.topics.get("orders")
    with pytest.raises(InvalidTransactionState):
        bench.publisher.publish_batch(topic, 0, batch([b"b"], producer=(*session.producer, 1)), bench.clock.now_ms())


def test_repeated_batch_is_answered_with_its_offset_until_the_producer_is_fenced() -> None:
    session = ProducerSession()
    session.begin()
    session.sequence = 0
    assert session.write(12) is NONE
    assert session.bench.topics.get("orders").queues[0].end_offset == 1
    session.end(5, session.producer, commit=False)
    session.sequence = 0
    assert session.write(12) is ErrorCode.invalid_producer_epoch


def with_last_epoch(session: ProducerSession) -> Producer:
    """Raise the transactional id to its last epoch, and begin a transaction."""
    empty(session)
    last = session.producer = Producer(session.producer.id, EPOCH_LAST)
    session.bench.transactions._append_state([], ID, last, TIMEOUT_MS, State.EMPTY, None, session.bench.clock.now_ms())
    assert session.write(12) is NONE
    return last


def test_producer_fenced_with_the_last_epoch_gets_no_later_epoch() -> None:
    session = ProducerSession()
    last = with_last_epoch(session)
    session.bench.transactions.fence(session.known, session.bench.clock.now_ms())
    session.bench.settle()
    assert (session.known.state, session.known.producer.epoch) == (State.ABORTED, 0)
    assert session.known.producer.id != last.id
    assert ErrorCode(session.end(5, last, commit=False).error_code) is ErrorCode.invalid_producer_id_mapping
    for producer in (last, Producer(last.id, EPOCH_LAST + 1)):
        session.producer = producer
        assert session.write(12) is not NONE
    answer = session.init()
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, session.known.producer.id, 1)


def test_producer_with_the_last_epoch_goes_on_as_another_one() -> None:
    session = ProducerSession()
    last = with_last_epoch(session)
    answer = session.end(5, last, commit=True)
    assert (answer.producer_id != last.id, answer.producer_epoch) == (True, 0)
    again = session.end(5, last, commit=True)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, answer.producer_id, 0)
    session.producer, session.sequence = Producer(answer.producer_id, 0), 0
    assert session.write(12) is NONE


@pytest.mark.parametrize(
    ("limit", "do"),
    [
        ("ids_max", lambda session: session.client.ask(ApiKey.INIT_PRODUCER_ID, 5, transactional_id="another",
                                                 transaction_timeout=1_000).error_code),
        ("pending_positions_max", lambda session: session.commit_offset(5, session.producer)),
        ("pending_positions_max", lambda session: added_group(session, "another")),
        ("groups_max", lambda session: added_group(session, "another")),
        ("groups_max", lambda session: session.commit_offset(5, session.producer)),
        ("partitions_max", lambda session: session.write(12)),
        ("partitions_max", lambda session: session.add(3, session.producer)),
        ("pending_partitions_max", lambda session: session.write(12)),
        ("pending_partitions_max", lambda session: session.add(3, session.producer)),
        ("aborted_max", lambda session: session.write(12)),
        ("segment_bytes", lambda session: session.write(12)),
        ("segment_bytes", lambda session: session.commit_offset(5, session.producer)),
    ],
)  # fmt: skip
def test_limit_is_kept(limit: str, do: Callable[[ProducerSession], ErrorCode]) -> None:
    session = ProducerSession()
    ended(session, 5, commit=False)
    field = "unit_bytes_max" if limit == "segment_bytes" else limit
    rules = session.bench.transactions.rules
    rules.limits = rules.limits._replace(**{field: 1 if limit in ("ids_max", "aborted_max") else 0})
    assert do(session) is ErrorCode.policy_violation


def test_transaction_at_its_limits_goes_on_with_what_it_has() -> None:
    session = ProducerSession()
    session.begin()
    assert session.add(3, session.producer, partition=1) is NONE
    assert session.commit_offset(5, session.producer) is NONE
    full = {"pending_positions_max": 2, "groups_max": 1, "partitions_max": 2, "pending_partitions_max": 2}
    rules = session.bench.transactions.rules
    rules.limits = rules.limits._replace(**full)
    for partition in (0, 1):
        assert session.write(12, partition=partition) is NONE
        assert session.add(3, session.producer, partition=partition) is NONE
    assert session.commit_offset(5, session.producer) is NONE
    assert added_group(session, GROUP) is NONE
    assert session.write(12, partition=2) is ErrorCode.policy_violation
    assert session.end(5, session.producer, commit=True).error_code is NONE
    coordinator = session.bench.transactions.coordinator
    assert (coordinator.pending_count, coordinator.queue_count) == (0, 0)


# -- Requests that are wrong whatever the state is: each has its code, and leaves everything as it was


def produced(session: ProducerSession, version: int, frame: bytes, transactional_id: str | None = ID) -> ErrorCode:
    asked = [{"name": "orders", "partition_data": [{"index": 0, "records": bytes(frame)}]}]
    answer = session.client.ask(ApiKey.PRODUCE, version, transactional_id=transactional_id, acks=-1, topic_data=asked)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def committed_offset(
    session: ProducerSession, version: int, group: str = GROUP, partition: int = 0, metadata: str = ""
) -> ErrorCode:
    place = {"partition_index": partition, "committed_offset": 17, "committed_metadata": metadata}
    answer = session.client.ask(
        ApiKey.TXN_OFFSET_COMMIT, version, transactional_id=ID, group_id=group, producer_id=session.producer.id,
        producer_epoch=session.producer.epoch, generation_id=-1, member_id="", group_instance_id=None,
        topics=[{"name": "orders", "partitions": [place]}],
    )  # fmt: skip
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def init_as(session: ProducerSession, name: str) -> ErrorCode:
    return ErrorCode(
        session.client.ask(ApiKey.INIT_PRODUCER_ID, 5, transactional_id=name, transaction_timeout=1_000).error_code
    )


def frame(session: ProducerSession, sequence: int = 0, **fields: Any) -> bytes:
    return batch(
        [b"a"], producer=(*session.producer, session.sequence + sequence), **({"is_transactional": True} | fields)
    )


WRONG: dict[str, tuple[Callable[[ProducerSession], Any], int]] = {
    "init without a name": (lambda session: init_as(session, ""), 42),
    "init with a long name": (lambda session: init_as(session, "x" * 1025), 42),
    "init with a timeout of 0": (lambda session: session.init(timeout_ms=0).error_code, 50),
    "init with a timeout too long": (lambda session: session.init(timeout_ms=900_001).error_code, 50),
    "add a topic that is not there": (lambda session: session.add(3, session.producer, topic="nowhere"), 3),
    "add a partition that is not there": (lambda session: session.add(3, session.producer, partition=9), 3),
    "write without a transactional id": (lambda session: produced(session, 12, frame(session), None), 53),
    "write under an unknown one": (lambda session: produced(session, 12, frame(session), "another"), 49),
    "write outside of the transaction": (
        lambda session: produced(session, 12, frame(session, is_transactional=False)), 48
    ),
    "write with a gap in the sequence": (lambda session: produced(session, 12, frame(session, 5)), 45),
    "write a marker": (
        lambda session: produced(session, 12, marker.build(0, -1, 1, *session.producer, is_commit=True)), 87
    ),
    "a group without a name": (lambda session: committed_offset(session, 5, group=""), 24),
    "a position of no partition": (lambda session: committed_offset(session, 5, partition=9), 3),
    "a position of no partition, 4": (lambda session: committed_offset(session, 4, partition=9), 3),
    "a position with long metadata": (lambda session: committed_offset(session, 5, metadata="x" * 4097), 12),
    "a position of an unknown member": (
        lambda session: session.commit_offset(5, session.producer, generation_id=4, member_id="m"), 22
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "state"),
    [
        (what, state)
        for what in WRONG
        for state in ("Ongoing", "commit 2", "abort 1")
        if what != "write outside of the transaction" or state == "Ongoing"
    ],
)
def test_wrong_request_has_its_code_and_changes_nothing(what: str, state: str) -> None:
    session = ProducerSession()
    STATES[state](session)
    ask, error = WRONG[what]
    unchanged, end = picture(session.bench), session.bench.store.next_position
    assert ErrorCode(ask(session)) is ErrorCode(error)
    assert picture(session.bench) == unchanged
    assert session.bench.store.next_position == end, "nothing was appended"


# -- Time


def test_idle_transactional_id_expires_and_an_open_transaction_does_not() -> None:
    session = ProducerSession()
    empty(session)
    week_ms = TxnOptions().id_expiration_ms
    session.bench.pass_ms(week_ms - 1)
    assert session.write(12) is NONE
    session.bench.pass_ms(1)
    assert session.known is not None
    session.bench.pass_ms(TIMEOUT_MS)
    session.bench.pass_ms(week_ms)
    assert session.known is None


def test_deadline_is_that_of_the_oldest_open_transaction() -> None:
    session = ProducerSession()
    assert session.bench.transactions.next_deadline_ms() is None
    session.begin()
    started_ms = session.bench.clock.now_ms()
    assert session.bench.transactions.next_deadline_ms() == started_ms + TIMEOUT_MS
    session.end(5, session.producer, commit=True)
    assert session.bench.transactions.next_deadline_ms() is None


# -- For operators


def test_transactions_are_listed_by_state_producer_and_duration() -> None:
    session = ProducerSession()
    session.begin()
    session.bench.pass_ms(5_000)

    def listed(**filters: Any) -> tuple[list[str], tuple[str, ...]]:
        answer = session.client.ask(ApiKey.LIST_TRANSACTIONS, 1, **({"duration_filter": -1} | filters))
        return [each.transactional_id for each in answer.transaction_states], answer.unknown_state_filters

    assert listed() == ([ID], ())
    assert listed(state_filters=("Ongoing", "Odd")) == ([ID], ("Odd",))
    assert listed(state_filters=("Empty",)) == ([], ())
    assert listed(producer_id_filters=(session.producer.id + 1,)) == ([], ())
    assert listed(duration_filter=4_999) == ([ID], ())
    assert listed(duration_filter=5_000) == ([], ())


def test_transaction_is_described() -> None:
    session = ProducerSession()
    session.begin()
    answer = session.client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=(ID, "another"))
    described, missing = answer.transaction_states
    assert (described.transaction_state, described.producer_id, described.producer_epoch) == (
        "Ongoing",
        *session.producer,
    )
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("orders", (0,))]
    assert missing.error_code is ErrorCode.transactional_id_not_found


@pytest.mark.parametrize(
    ("epoch", "is_commit", "partition", "error"),
    [(0, False, 0, 0), (-1, False, 0, 47), (0, True, 0, 31), (0, False, 9, 3), (0, False, 1, 0)],
)
def test_tools_abort_a_whole_transaction(epoch: int, is_commit: bool, partition: int, error: int) -> None:
    session = ProducerSession()
    session.begin()
    asked = {
        "producer_id": session.producer.id,
        "producer_epoch": session.producer.epoch + epoch,
        "transaction_result": is_commit,
        "topics": [{"name": "orders", "partition_indexes": (partition,)}],
    }
    answer = session.client.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[asked])
    assert answer.markers[0].topics[0].partitions[0].error_code is ErrorCode(error)
    was_open_there = error == 0 and partition == 0
    assert session.known.state is (State.ABORTED if was_open_there else State.ONGOING)


@pytest.mark.parametrize(("version", "finalized", "supported"), [(2, [], []), (3, [2], []), (4, [2], [(0, 2)])])
def test_version_2_is_a_finalized_feature(version: int, finalized: list[int], supported: list[Any]) -> None:
    answer = ProducerSession().client.ask(
        ApiKey.API_VERSIONS, version, client_software_name="a", client_software_version="1"
    )
    assert [each.max_version_level for each in getattr(answer, "finalized_features", ())] == finalized
    assert [(each.min_version, each.max_version) for each in getattr(answer, "supported_features", ())] == supported
    assert getattr(answer, "finalized_features_epoch", 0) >= 0, "else clients ignore it"


# -- Delayed records of a transaction


def delayed(session: ProducerSession, *values: bytes, delay_ms: int = 5_000) -> None:
    """Write one batch: the first record at once, the others later; transactional, in version 2."""
    builder = batch_builder.BatchBuilder()
    for number, value in enumerate(values):
        headers = [("TIMER_DELAY_MS", str(delay_ms).encode())] if number else []
        builder.append(number, session.bench.clock.now_ms(), None, value, headers)
    frame = builder.finish(0, -1, producer=(*session.producer, session.sequence), is_transactional=True)
    bench, topic = session.bench, session.bench.topics.get("orders")
    origin = BatchOrigin(transactional_id=ID, adds_partition=True)
    published = bench.publisher.publish_batch(topic, 0, frame, bench.clock.now_ms(), origin)
    assert published.base_offset == -1
    session.sequence += len(values)
    bench.settle()


def committed(core: ManualCore) -> list[str]:
    topic = core.topics.get("orders")
    return [text for _, text in committed_for_kafka(core, topic, topic.queues[0])]


def pass_time(core: ManualCore, ms: int) -> None:
    core.clock.pass_ms(ms)
    core.delays.run(core.clock.now_ms(), core.clock.mono_ms())
    core.settle()


def restarted(session: ProducerSession) -> ManualCore:
    """A broker that recovers, once with its state in the log alone, and once with it in a checkpoint."""
    core = ManualCore(session.bench.options, session.bench.disk.after_kill(), SMALL_STORE)
    core.clock.set_now_ms(session.bench.clock.now_ms())
    return core


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("waited_ms", [1_000, 9_000], ids=["commit first", "due first"])
def test_delayed_record_is_delivered_at_the_later_of_commit_and_due_time(waited_ms: int, is_checkpointed: bool) -> None:
    session = ProducerSession()
    empty(session)
    delayed(session, b"now", b"later", b"later too")
    pass_time(session.bench, waited_ms)
    assert committed(session.bench) == []
    if is_checkpointed:
        session.bench.store.checkpoint(0)
        session.bench.settle()
    core = restarted(session)
    for broker in (session.bench, core):
        broker.transactions.end(ID, session.producer, broker.clock.now_ms(), is_commit=True, renews=True)
        broker.settle()
        pass_time(broker, 0)
        is_due = waited_ms > 5_000
        assert committed(broker) == (["now", "later", "later too"] if is_due else ["now"])
        pass_time(broker, 5_000)
        assert committed(broker) == ["now", "later", "later too"]


@pytest.mark.parametrize("how", ["abort", "newer producer", "overdue"])
def test_delayed_record_of_an_aborted_transaction_is_never_delivered(how: str) -> None:
    session = ProducerSession()
    empty(session)
    delayed(session, b"now", b"later")
    assert len(session.bench.delays.timers) == 1
    if how == "abort":
        session.end(5, session.producer, commit=False)
    elif how == "newer producer":
        session.init()
    else:
        session.bench.pass_ms(TIMEOUT_MS)
        session.bench.transactions.expire(session.bench.clock.now_ms())
        session.bench.settle()
    for broker in (session.bench, restarted(session)):
        pass_time(broker, 10_000)
        assert (committed(broker), len(broker.delays.timers)) == ([], 0)


def test_producer_ids_are_never_given_twice(client: Client) -> None:
    first, second = (client.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None) for _ in range(2))
    assert (first.error_code, first.producer_epoch) == (ErrorCode.none, 0)
    assert first.producer_id != second.producer_id
