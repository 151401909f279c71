"""Walks the table of the transaction coordinator on the wire: who asks what in which state, and what comes of it.

Expected is what Apache Kafka does (TransactionCoordinator.scala; 4.3.1 was asked where that leaves doubt).

A refused request must have changed nothing; after each row a broker that recovers from the log is in the same state.
"""

from collections.abc import Callable
from typing import Any

import pytest

from duolog.bridge.config import DAY_MS, TxnOptions
from duolog.bridge.data.publishing.produced_batches import BatchOrigin
from duolog.bridge.state.records import CommittedPosition
from duolog.protocol.kafka import batch_builder, marker, record_batch
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.store.errors import OffsetOutOfRange
from duolog.txn.coordinator import (
    EPOCH_LAST,
    TABLE,
    Outcome,
    Producer,
    ProducerMatch,
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


class Talk:
    """One client that asks as producers do; `producer` is who it says to be."""

    def __init__(self) -> None:
        self.bench = KafkaBench()
        self.bench.topic("orders", 3)
        self.client: Client = self.bench.connect()
        self.producer = Producer(5, 0)  # Whom nobody knows.
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


# -- The states, and how a producer gets there. It then knows itself as the newest, but where "before" is said.


def empty(talk: Talk) -> None:
    """Initialize once more than is needed for there to be older producers."""
    answer = [talk.init() for _ in range(3)][-1]
    talk.producer = Producer(answer.producer_id, answer.producer_epoch)


def added_group(talk: Talk, group: str) -> ErrorCode:
    answer = talk.client.ask(
        ApiKey.ADD_OFFSETS_TO_TXN, 4, transactional_id=ID, producer_id=talk.producer.id,
        producer_epoch=talk.producer.epoch, group_id=group,
    )  # fmt: skip
    return ErrorCode(answer.error_code)


def ended(talk: Talk, version: int, *, commit: bool) -> None:
    talk.begin()
    answer = talk.end(version, talk.producer, commit=commit)
    assert answer.error_code is NONE
    if version >= 5:
        talk.producer = Producer(answer.producer_id, answer.producer_epoch)
        talk.sequence = 0


def overdue(talk: Talk) -> None:
    talk.begin()
    talk.bench.pass_ms(TIMEOUT_MS)
    talk.bench.transactions.expire(talk.bench.clock.now_ms())
    talk.bench.settle()
    talk.producer = talk.known.producer
    talk.sequence = 0


def resumed(talk: Talk) -> None:
    """Initialize as a producer that goes on after an error: the one before may ask for that once more."""
    empty(talk)
    answer = talk.init(claimed=talk.producer)
    talk.producer = Producer(answer.producer_id, answer.producer_epoch)


def resumed_and_begun(talk: Talk) -> None:
    resumed(talk)
    assert talk.write(12) is NONE


STATES: dict[str, Callable[[Talk], None]] = {
    "unknown": lambda talk: None,
    "Empty": empty,
    "Ongoing": Talk.begin,
    "commit 1": lambda talk: ended(talk, 4, commit=True),
    "abort 1": lambda talk: ended(talk, 4, commit=False),
    "commit 2": lambda talk: ended(talk, 5, commit=True),
    "abort 2": lambda talk: ended(talk, 5, commit=False),
    "overdue": overdue,
    "resumed": resumed,
    "resumed, Ongoing": resumed_and_begun,
}

# -- What is asked, by whom


def newest(talk: Talk) -> Producer:
    return talk.producer


def before(talk: Talk) -> Producer:
    return Producer(talk.producer.id, talk.producer.epoch - 1)


def older(talk: Talk) -> Producer:
    return Producer(talk.producer.id, talk.producer.epoch - 2)


def stranger(talk: Talk) -> Producer:
    return Producer(talk.producer.id + 1000, talk.producer.epoch)


Asked = Callable[[Talk, Producer], ErrorCode]
ASKS: dict[str, Asked] = {
    "init": lambda talk, who: talk.init().error_code,
    "resume": lambda talk, who: talk.init(claimed=who).error_code,
    "resume 3": lambda talk, who: talk.init(3, claimed=who).error_code,
    "add": lambda talk, who: talk.add(3, who),
    "add 1": lambda talk, who: talk.add(1, who),
    "group": lambda talk, who: talk.add_group(4, who),
    "group 1": lambda talk, who: talk.add_group(1, who),
    "write 11": lambda talk, who: talk.write(11, who),
    "elsewhere": lambda talk, who: talk.write(11, who, partition=2),  # Not added to the transaction.
    "write 12": lambda talk, who: talk.write(12, who),
    "offset 4": lambda talk, who: talk.commit_offset(4, who),
    "offset 5": lambda talk, who: talk.commit_offset(5, who),
    "commit 4": lambda talk, who: talk.end(4, who, commit=True).error_code,
    "abort 4": lambda talk, who: talk.end(4, who, commit=False).error_code,
    "commit 1": lambda talk, who: talk.end(1, who, commit=True).error_code,
    "commit 5": lambda talk, who: talk.end(5, who, commit=True).error_code,
    "abort 5": lambda talk, who: talk.end(5, who, commit=False).error_code,
}

# In the order of STATES: the error code, or the state that follows and by how much the epoch rises.
# E, O, C, A are Kafka's Empty, Ongoing, CompleteCommit, CompleteAbort; "-" is not asked, for nobody is known there.
_ROWS = """
init      newest    E0  E1  E1  E1  E1  E1  E1  E1  E1  E1
resume    newest    -   E1  E1  E1  E1  E1  E1  E1  E1  E1
resume    before    -   90  90  90  90  E0  E0  90  E0  90
resume    older     -   90  90  90  90  90  90  90  90  90
resume    stranger  -   90  90  90  90  90  90  90  90  90
resume 3  older     -   47  47  47  47  47  47  47  47  47
add       newest    49  O0  O0  O0  O0  O0  O0  O0  O0  O0
add       before    -   90  90  90  90  90  90  90  90  90
add       stranger  -   49  49  49  49  49  49  49  49  49
add 1     before    -   47  47  47  47  47  47  47  47  47
group     newest    49  O0  O0  O0  O0  O0  O0  O0  O0  O0
group     before    -   90  90  90  90  90  90  90  90  90
group 1   before    -   47  47  47  47  47  47  47  47  47
write 11  newest    49  48  O0  48  48  48  48  48  48  O0
write 11  before    -   47  47  47  47  47  47  47  47  47
elsewhere newest    49  48  48  48  48  48  48  48  48  48
write 12  newest    49  O0  O0  O0  O0  O0  O0  O0  O0  O0
write 12  before    -   47  47  47  47  47  47  47  47  47
write 12  stranger  -   49  49  49  49  49  49  49  49  49
offset 4  newest    49  48  48  48  48  48  48  48  48  48
offset 4  before    -   47  47  47  47  47  47  47  47  47
offset 5  newest    49  O0  O0  O0  O0  O0  O0  O0  O0  O0
offset 5  before    -   47  47  47  47  47  47  47  47  47
commit 4  newest    49  48  C0  C0  48  C0  48  48  48  C0
commit 4  before    -   90  90  90  90  90  90  90  90  90
commit 4  stranger  -   49  49  49  49  49  49  49  49  49
commit 1  before    -   47  47  47  47  47  47  47  47  47
abort 4   newest    49  48  A0  48  A0  48  A0  A0  48  A0
abort 4   before    -   90  90  90  90  90  90  90  90  90
commit 5  newest    49  48  C1  48  48  48  48  48  48  C1
commit 5  before    -   90  90  C0  48  C0  48  48  90  90
commit 5  older     -   90  90  90  90  90  90  90  90  90
commit 5  stranger  -   49  49  49  49  49  49  49  49  49
abort 5   newest    49  A1  A1  A1  A1  A1  A1  A1  A1  A1
abort 5   before    -   90  90  48  A0  48  A0  A0  90  90
abort 5   older     -   90  90  90  90  90  90  90  90  90
"""
WHO = {"newest": newest, "before": before, "older": older, "stranger": stranger}
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
    talk = Talk()
    STATES[state](talk)
    epoch = talk.known.producer.epoch if talk.known else 0
    unchanged = picture(talk.bench)
    code = ASKS[asked](talk, WHO[who](talk))
    if result.isdigit():
        assert code is ErrorCode(int(result))
        assert picture(talk.bench) == unchanged
    elif result[0] == "E" and who == "before":
        assert (code, talk.known.producer.epoch) == (NONE, epoch), "asked again: the same answer"
        assert picture(talk.bench) == unchanged
    else:
        assert code is NONE
        assert (talk.known.state, talk.known.producer.epoch - epoch) == (_LETTERS[result[0]], int(result[1]))
    talk.bench.settle()
    assert picture(ManualCore(talk.bench.options, talk.bench.disk.after_kill(), SMALL_STORE)) == picture(talk.bench)


def test_rows_reach_each_entry_of_the_coordinators_table(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[tuple[TransactionRequest, ProducerMatch, State]] = set()
    judge = Transaction.judge

    def noted(transaction: Transaction[Any], ask: TransactionRequest, producer: Producer | None = None) -> Outcome:
        standing = ProducerMatch.CURRENT if producer is None else transaction.match(producer, ask)
        reached.add((ask, standing, transaction.state))
        return judge(transaction, ask, producer)

    monkeypatch.setattr(Transaction, "judge", noted)
    for asked, who, state, _ in (row.values for row in rows()):
        talk = Talk()
        STATES[state](talk)
        ASKS[asked](talk, WHO[who](talk))
        if talk.known is not None:
            talk.bench.transactions.fence(talk.known, talk.bench.clock.now_ms())
    assert reached >= TABLE.keys()


# -- Readers


def fetch(talk: Talk, isolation: int, offset: int = 0, **values: Any) -> Any:
    asked = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    answer = talk.client.ask(
        ApiKey.FETCH, 12, isolation_level=isolation, max_bytes=1 << 20, session_epoch=-1,
        topics=[{"topic": "orders", "partitions": [asked]}], **({"min_bytes": 1} | values),
    )  # fmt: skip
    return answer.responses[0].partitions[0] if answer is not None else None


def ends(talk: Talk, isolation: int) -> tuple[int, int]:
    """(last stable offset in Fetch, latest in ListOffsets)"""
    asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    topics = [{"name": "orders", "partitions": [asked]}]
    listed = talk.client.ask(ApiKey.LIST_OFFSETS, 8, isolation_level=isolation, topics=topics)
    return fetch(talk, isolation).last_stable_offset, listed.topics[0].partitions[0].offset


def test_readers_end_at_the_last_stable_offset_and_learn_what_was_aborted() -> None:
    talk = Talk()
    talk.begin()
    first_producer = talk.producer
    talk.bench.write(talk.bench.topics.get("orders"), b"behind it")
    assert ends(talk, 1) == (0, 0)
    assert ends(talk, 0) == (0, 2)
    assert not fetch(talk, 1).records
    assert fetch(talk, 1, offset=2).error_code is NONE, "between both ends is in range"
    assert fetch(talk, 0).high_watermark == 2

    talk.end(5, first_producer, commit=False)
    read = fetch(talk, 1)
    assert read.last_stable_offset == read.high_watermark == 3
    aborted = [(each.producer_id, each.first_offset) for each in read.aborted_transactions]
    assert aborted == [(first_producer.id, 0)]
    assert len(record_batch.split(read.records)) == 3, "leaving it out is the client's"
    assert fetch(talk, 1, offset=1).aborted_transactions == read.aborted_transactions, "it began before"
    assert fetch(talk, 0).aborted_transactions is None
    assert ends(talk, 1) == (3, 3)


def test_waiting_read_committed_fetch_is_completed_by_the_marker() -> None:
    talk = Talk()
    talk.begin()
    reader = talk.bench.connect()
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    number = reader.send(
        ApiKey.FETCH, 12, isolation_level=1, max_bytes=1 << 20, session_epoch=-1, min_bytes=60, max_wait=30_000,
        topics=[{"topic": "orders", "partitions": [asked]}],
    )  # fmt: skip
    talk.write(12)
    assert reader.answer_to(number) is None
    talk.bench.is_stalled = True
    ending = talk.client.send(
        ApiKey.END_TXN, 5, transactional_id=ID, committed=True, producer_id=talk.producer.id,
        producer_epoch=talk.producer.epoch,
    )  # fmt: skip
    assert talk.client.answer_to(ending) is None
    assert reader.answer_to(number) is None, "a marker that is not on the disk ends nothing"
    talk.bench.is_stalled = False
    talk.bench.settle()
    assert talk.client.answer_to(ending).error_code is NONE
    assert len(record_batch.split(reader.answer_to(number).responses[0].partitions[0].records)) == 3


@pytest.mark.parametrize("goes", ["topic", "records"])
def test_cold_read_knows_the_transactions_that_were_aborted_when_it_began(goes: str) -> None:
    talk = Talk()
    talk.begin()
    talk.end(5, talk.producer, commit=False)
    bench, topic = talk.bench, talk.bench.topics.get("orders")
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
    pull: Any = bench.reader.rocketmq(queue, topic, 0, 2, 1, queue.visible_end)
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


def fetched_offset(talk: Talk, *, stable: bool) -> tuple[ErrorCode, int]:
    groups = [{"group_id": GROUP, "topics": [{"name": "orders", "partition_indexes": (0,)}]}]
    answer = talk.client.ask(ApiKey.OFFSET_FETCH, 8, groups=groups, require_stable=stable)
    found = answer.groups[0].topics[0].partitions[0]
    return found.error_code, found.committed_offset


@pytest.mark.parametrize(("version", "commit", "kept"), [(5, True, 17), (4, True, 17), (5, False, 3), (4, False, 3)])
def test_positions_become_the_groups_with_the_commit(version: int, commit: bool, kept: int) -> None:
    talk = Talk()
    empty(talk)
    position = CommittedPosition(talk.bench.topics.get("orders").key(0), 3)
    talk.bench.positions.commit(GROUP, [position], talk.bench.clock.now_ms())
    if version < 5:
        assert talk.add_group(3, talk.producer) is NONE
    assert talk.commit_offset(version, talk.producer) is NONE
    assert fetched_offset(talk, stable=False) == (NONE, 3)
    assert fetched_offset(talk, stable=True) == (ErrorCode.unstable_offset_commit, -1)
    assert talk.end(version, talk.producer, commit=commit).error_code is NONE
    assert fetched_offset(talk, stable=True) == (NONE, kept)


@pytest.mark.parametrize(
    ("who", "error"),
    [
        ({"generation_id": 4, "member_id": "m"}, ErrorCode.illegal_generation),
        ({"member_id": "m"}, NONE),  # The group has no members, and nobody claims a generation.
    ],
)
def test_positions_of_a_member_are_checked(who: dict[str, Any], error: ErrorCode) -> None:
    talk = Talk()
    empty(talk)
    assert talk.commit_offset(5, talk.producer, **who) is error


def test_pending_offsets_are_deleted_with_their_group_and_their_topic() -> None:
    for gone in ("group", "topic"):
        talk = Talk()
        talk.begin()
        talk.commit_offset(5, talk.producer)
        if gone == "group":
            talk.bench.positions.delete_group(GROUP, talk.bench.clock.now_ms())
        else:
            talk.bench.topics.delete(talk.bench.topics.get("orders"), talk.bench.clock.now_ms())
            talk.bench.sweep()
        pending = 0 if gone == "group" else 1  # The group counts, too.
        assert talk.bench.transactions.coordinator.pending_count == pending
        assert talk.end(5, talk.producer, commit=True).error_code is NONE
        assert not talk.bench.positions.all_of(GROUP)


def test_group_does_not_expire_while_a_transaction_holds_it() -> None:
    talk = Talk()
    positions, now_ms = talk.bench.positions, talk.bench.clock.now_ms()
    positions.commit(GROUP, [CommittedPosition(talk.bench.topics.get("orders").key(0), 3)], now_ms)
    talk.begin()
    talk.commit_offset(5, talk.producer)
    list(positions.expire(now_ms + 365 * DAY_MS, talk.bench.is_alive))
    assert talk.end(5, talk.producer, commit=True).error_code is NONE
    assert [each.offset for each in positions.all_of(GROUP).values()] == [17]
    list(positions.expire(now_ms + 1000 * DAY_MS, talk.bench.is_alive))
    assert GROUP not in positions


# -- What is refused besides


@pytest.mark.parametrize(
    ("timeout_ms", "error"),
    [(0, 50), (-1, 50), (900_001, 50), (900_000, 0), (1, 0)],
)
def test_timeout_out_of_range_is_refused(timeout_ms: int, error: int) -> None:
    talk = Talk()
    assert talk.init(timeout_ms=timeout_ms).error_code is ErrorCode(error)
    assert (talk.known is None) == bool(error)


def test_one_unknown_partition_refuses_all() -> None:
    talk = Talk()
    empty(talk)
    topics = [{"name": "orders", "partitions": (0, 9)}, {"name": "nowhere", "partitions": (0,)}]
    answer = talk.client.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN, 3, v3_and_below_transactional_id=ID, v3_and_below_topics=topics,
        v3_and_below_producer_id=talk.producer.id, v3_and_below_producer_epoch=talk.producer.epoch,
    )  # fmt: skip
    codes = [each.partition_error_code for topic in answer.results_by_topic_v3_and_below
             for each in topic.results_by_partition]  # fmt: skip
    missing = ErrorCode.unknown_topic_or_partition
    assert codes == [ErrorCode.operation_not_attempted, missing, missing]
    assert talk.known.state is State.EMPTY


def test_batch_outside_of_the_open_transaction_of_its_producer_is_refused() -> None:
    talk = Talk()
    talk.begin()
    bench, topic = talk.bench, talk.bench.topics.get("orders")
    with pytest.raises(InvalidTransactionState):
        bench.publisher.publish_batch(topic, 0, batch([b"b"], producer=(*talk.producer, 1)), bench.clock.now_ms())


def test_repeated_batch_is_answered_with_its_offset_until_the_producer_is_fenced() -> None:
    talk = Talk()
    talk.begin()
    talk.sequence = 0
    assert talk.write(12) is NONE
    assert talk.bench.topics.get("orders").queues[0].end_offset == 1
    talk.end(5, talk.producer, commit=False)
    talk.sequence = 0
    assert talk.write(12) is ErrorCode.invalid_producer_epoch


def with_last_epoch(talk: Talk) -> Producer:
    """Have the transactional id come to its last epoch, and begin a transaction."""
    empty(talk)
    last = talk.producer = Producer(talk.producer.id, EPOCH_LAST)
    talk.bench.transactions._settle([], ID, last, TIMEOUT_MS, State.EMPTY, None, talk.bench.clock.now_ms())
    assert talk.write(12) is NONE
    return last


def test_producer_fenced_with_the_last_epoch_gets_no_later_epoch() -> None:
    talk = Talk()
    last = with_last_epoch(talk)
    talk.bench.transactions.fence(talk.known, talk.bench.clock.now_ms())
    talk.bench.settle()
    assert (talk.known.state, talk.known.producer.epoch) == (State.ABORTED, 0)
    assert talk.known.producer.id != last.id
    assert ErrorCode(talk.end(5, last, commit=False).error_code) is ErrorCode.invalid_producer_id_mapping
    for producer in (last, Producer(last.id, EPOCH_LAST + 1)):
        talk.producer = producer
        assert talk.write(12) is not NONE
    answer = talk.init()
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, talk.known.producer.id, 1)


def test_producer_with_the_last_epoch_goes_on_as_another_one() -> None:
    talk = Talk()
    last = with_last_epoch(talk)
    answer = talk.end(5, last, commit=True)
    assert (answer.producer_id != last.id, answer.producer_epoch) == (True, 0)
    again = talk.end(5, last, commit=True)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, answer.producer_id, 0)
    talk.producer, talk.sequence = Producer(answer.producer_id, 0), 0
    assert talk.write(12) is NONE


@pytest.mark.parametrize(
    ("limit", "do"),
    [
        ("ids_max", lambda talk: talk.client.ask(ApiKey.INIT_PRODUCER_ID, 5, transactional_id="another",
                                                 transaction_timeout=1_000).error_code),
        ("pending_positions_max", lambda talk: talk.commit_offset(5, talk.producer)),
        ("pending_positions_max", lambda talk: added_group(talk, "another")),
        ("groups_max", lambda talk: added_group(talk, "another")),
        ("groups_max", lambda talk: talk.commit_offset(5, talk.producer)),
        ("partitions_max", lambda talk: talk.write(12)),
        ("partitions_max", lambda talk: talk.add(3, talk.producer)),
        ("pending_partitions_max", lambda talk: talk.write(12)),
        ("pending_partitions_max", lambda talk: talk.add(3, talk.producer)),
        ("aborted_max", lambda talk: talk.write(12)),
        ("segment_bytes", lambda talk: talk.write(12)),
        ("segment_bytes", lambda talk: talk.commit_offset(5, talk.producer)),
    ],
)  # fmt: skip
def test_limit_is_kept(limit: str, do: Callable[[Talk], ErrorCode]) -> None:
    talk = Talk()
    ended(talk, 5, commit=False)
    field = "unit_bytes_max" if limit == "segment_bytes" else limit
    rules = talk.bench.transactions.rules
    rules.limits = rules.limits._replace(**{field: 1 if limit in ("ids_max", "aborted_max") else 0})
    assert do(talk) is ErrorCode.policy_violation


def test_transaction_at_its_limits_goes_on_with_what_it_has() -> None:
    talk = Talk()
    talk.begin()
    assert talk.add(3, talk.producer, partition=1) is NONE
    assert talk.commit_offset(5, talk.producer) is NONE
    full = {"pending_positions_max": 2, "groups_max": 1, "partitions_max": 2, "pending_partitions_max": 2}
    rules = talk.bench.transactions.rules
    rules.limits = rules.limits._replace(**full)
    for partition in (0, 1):
        assert talk.write(12, partition=partition) is NONE
        assert talk.add(3, talk.producer, partition=partition) is NONE
    assert talk.commit_offset(5, talk.producer) is NONE
    assert added_group(talk, GROUP) is NONE
    assert talk.write(12, partition=2) is ErrorCode.policy_violation
    assert talk.end(5, talk.producer, commit=True).error_code is NONE
    coordinator = talk.bench.transactions.coordinator
    assert (coordinator.pending_count, coordinator.queue_count) == (0, 0)


# -- Requests that are wrong whatever the state is: each has its code, and leaves everything as it was


def produced(talk: Talk, version: int, frame: bytes, transactional_id: str | None = ID) -> ErrorCode:
    asked = [{"name": "orders", "partition_data": [{"index": 0, "records": bytes(frame)}]}]
    answer = talk.client.ask(ApiKey.PRODUCE, version, transactional_id=transactional_id, acks=-1, topic_data=asked)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def committed_offset(talk: Talk, version: int, group: str = GROUP, partition: int = 0, metadata: str = "") -> ErrorCode:
    place = {"partition_index": partition, "committed_offset": 17, "committed_metadata": metadata}
    answer = talk.client.ask(
        ApiKey.TXN_OFFSET_COMMIT, version, transactional_id=ID, group_id=group, producer_id=talk.producer.id,
        producer_epoch=talk.producer.epoch, generation_id=-1, member_id="", group_instance_id=None,
        topics=[{"name": "orders", "partitions": [place]}],
    )  # fmt: skip
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def init_as(talk: Talk, name: str) -> ErrorCode:
    return ErrorCode(
        talk.client.ask(ApiKey.INIT_PRODUCER_ID, 5, transactional_id=name, transaction_timeout=1_000).error_code
    )


def frame(talk: Talk, sequence: int = 0, **fields: Any) -> bytes:
    return batch([b"a"], producer=(*talk.producer, talk.sequence + sequence), **({"is_transactional": True} | fields))


WRONG: dict[str, tuple[Callable[[Talk], Any], int]] = {
    "init without a name": (lambda talk: init_as(talk, ""), 42),
    "init with a long name": (lambda talk: init_as(talk, "x" * 1025), 42),
    "init with a timeout of 0": (lambda talk: talk.init(timeout_ms=0).error_code, 50),
    "init with a timeout too long": (lambda talk: talk.init(timeout_ms=900_001).error_code, 50),
    "add a topic that is not there": (lambda talk: talk.add(3, talk.producer, topic="nowhere"), 3),
    "add a partition that is not there": (lambda talk: talk.add(3, talk.producer, partition=9), 3),
    "write without a transactional id": (lambda talk: produced(talk, 12, frame(talk), None), 53),
    "write under an unknown one": (lambda talk: produced(talk, 12, frame(talk), "another"), 49),
    "write outside of the transaction": (lambda talk: produced(talk, 12, frame(talk, is_transactional=False)), 48),
    "write with a gap in the sequence": (lambda talk: produced(talk, 12, frame(talk, 5)), 45),
    "write a marker": (lambda talk: produced(talk, 12, marker.build(0, -1, 1, *talk.producer, is_commit=True)), 87),
    "a group without a name": (lambda talk: committed_offset(talk, 5, group=""), 24),
    "a position of no partition": (lambda talk: committed_offset(talk, 5, partition=9), 3),
    "a position of no partition, 4": (lambda talk: committed_offset(talk, 4, partition=9), 3),
    "a position with long metadata": (lambda talk: committed_offset(talk, 5, metadata="x" * 4097), 12),
    "a position of an unknown member": (lambda talk: talk.commit_offset(5, talk.producer, generation_id=4,
                                                                        member_id="m"), 22),
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
    talk = Talk()
    STATES[state](talk)
    ask, error = WRONG[what]
    unchanged, end = picture(talk.bench), talk.bench.store.next_position
    assert ErrorCode(ask(talk)) is ErrorCode(error)
    assert picture(talk.bench) == unchanged
    assert talk.bench.store.next_position == end, "nothing was appended"


# -- Time


def test_idle_transactional_id_expires_and_an_open_transaction_does_not() -> None:
    talk = Talk()
    empty(talk)
    list(talk.bench.transactions.tidy(talk.bench.clock.now_ms()))
    assert talk.known is not None
    week_ms = TxnOptions().id_expiration_ms
    talk.bench.pass_ms(week_ms)
    assert talk.write(12) is NONE
    list(talk.bench.transactions.tidy(talk.bench.clock.now_ms()))
    assert talk.known is not None
    talk.bench.transactions.expire(talk.bench.clock.now_ms() + TIMEOUT_MS)
    talk.bench.pass_ms(week_ms + TIMEOUT_MS)
    list(talk.bench.transactions.tidy(talk.bench.clock.now_ms()))
    assert talk.known is None


def test_deadline_is_that_of_the_oldest_open_transaction() -> None:
    talk = Talk()
    assert talk.bench.transactions.next_deadline_ms() is None
    talk.begin()
    started_ms = talk.bench.clock.now_ms()
    assert talk.bench.transactions.next_deadline_ms() == started_ms + TIMEOUT_MS
    talk.end(5, talk.producer, commit=True)
    assert talk.bench.transactions.next_deadline_ms() is None


# -- For operators


def test_transactions_are_listed_by_state_producer_and_duration() -> None:
    talk = Talk()
    talk.begin()
    talk.bench.pass_ms(5_000)

    def listed(**filters: Any) -> tuple[list[str], tuple[str, ...]]:
        answer = talk.client.ask(ApiKey.LIST_TRANSACTIONS, 1, **({"duration_filter": -1} | filters))
        return [each.transactional_id for each in answer.transaction_states], answer.unknown_state_filters

    assert listed() == ([ID], ())
    assert listed(state_filters=("Ongoing", "Odd")) == ([ID], ("Odd",))
    assert listed(state_filters=("Empty",)) == ([], ())
    assert listed(producer_id_filters=(talk.producer.id + 1,)) == ([], ())
    assert listed(duration_filter=4_999) == ([ID], ())
    assert listed(duration_filter=5_000) == ([], ())


def test_transaction_is_described() -> None:
    talk = Talk()
    talk.begin()
    answer = talk.client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=(ID, "another"))
    told, missing = answer.transaction_states
    assert (told.transaction_state, told.producer_id, told.producer_epoch) == ("Ongoing", *talk.producer)
    assert [(topic.topic, topic.partitions) for topic in told.topics] == [("orders", (0,))]
    assert missing.error_code is ErrorCode.transactional_id_not_found


@pytest.mark.parametrize(
    ("epoch", "is_commit", "partition", "error"),
    [(0, False, 0, 0), (-1, False, 0, 47), (0, True, 0, 31), (0, False, 9, 3), (0, False, 1, 0)],
)
def test_tools_abort_a_whole_transaction(epoch: int, is_commit: bool, partition: int, error: int) -> None:
    talk = Talk()
    talk.begin()
    asked = {
        "producer_id": talk.producer.id,
        "producer_epoch": talk.producer.epoch + epoch,
        "transaction_result": is_commit,
        "topics": [{"name": "orders", "partition_indexes": (partition,)}],
    }
    answer = talk.client.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[asked])
    assert answer.markers[0].topics[0].partitions[0].error_code is ErrorCode(error)
    was_open_there = error == 0 and partition == 0
    assert talk.known.state is (State.ABORTED if was_open_there else State.ONGOING)


@pytest.mark.parametrize(("version", "finalized", "supported"), [(2, [], []), (3, [2], []), (4, [2], [(0, 2)])])
def test_version_2_is_a_finalized_feature(version: int, finalized: list[int], supported: list[Any]) -> None:
    answer = Talk().client.ask(ApiKey.API_VERSIONS, version, client_software_name="a", client_software_version="1")
    assert [each.max_version_level for each in getattr(answer, "finalized_features", ())] == finalized
    assert [(each.min_version, each.max_version) for each in getattr(answer, "supported_features", ())] == supported
    assert getattr(answer, "finalized_features_epoch", 0) >= 0, "else clients ignore it"


# -- Delayed records of a transaction


def delayed(talk: Talk, *values: bytes, delay_ms: int = 5_000) -> None:
    """Write one batch: the first record at once, the others later; transactional, in version 2."""
    builder = batch_builder.BatchBuilder()
    for number, value in enumerate(values):
        headers = [("TIMER_DELAY_MS", str(delay_ms).encode())] if number else []
        builder.append(number, talk.bench.clock.now_ms(), None, value, headers)
    frame = builder.finish(0, -1, producer=(*talk.producer, talk.sequence), is_transactional=True)
    bench, topic = talk.bench, talk.bench.topics.get("orders")
    origin = BatchOrigin(transactional_id=ID, adds_partition=True)
    published = bench.publisher.publish_batch(topic, 0, frame, bench.clock.now_ms(), origin)
    assert published.base_offset == -1
    talk.sequence += len(values)
    bench.settle()


def committed(core: ManualCore) -> list[str]:
    topic = core.topics.get("orders")
    return [text for _, text in committed_for_kafka(core, topic, topic.queues[0])]


def pass_time(core: ManualCore, ms: int) -> None:
    core.clock.pass_ms(ms)
    core.delays.run(core.clock.now_ms(), core.clock.mono_ms())
    core.settle()


def restarted(talk: Talk) -> ManualCore:
    """A broker that recovers, once with its state in the log alone, and once with it in a checkpoint."""
    core = ManualCore(talk.bench.options, talk.bench.disk.after_kill(), SMALL_STORE)
    core.clock.set_now_ms(talk.bench.clock.now_ms())
    return core


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("waited_ms", [1_000, 9_000], ids=["commit first", "due first"])
def test_delayed_record_is_delivered_at_the_later_of_commit_and_due_time(waited_ms: int, is_checkpointed: bool) -> None:
    talk = Talk()
    empty(talk)
    delayed(talk, b"now", b"later", b"later too")
    pass_time(talk.bench, waited_ms)
    assert committed(talk.bench) == []
    if is_checkpointed:
        talk.bench.store.checkpoint(0)
        talk.bench.settle()
    core = restarted(talk)
    for broker in (talk.bench, core):
        broker.transactions.end(ID, talk.producer, broker.clock.now_ms(), is_commit=True, renews=True)
        broker.settle()
        pass_time(broker, 0)
        is_due = waited_ms > 5_000
        assert committed(broker) == (["now", "later", "later too"] if is_due else ["now"])
        pass_time(broker, 5_000)
        assert committed(broker) == ["now", "later", "later too"]


@pytest.mark.parametrize("how", ["abort", "newer producer", "overdue"])
def test_delayed_record_of_an_aborted_transaction_is_never_delivered(how: str) -> None:
    talk = Talk()
    empty(talk)
    delayed(talk, b"now", b"later")
    assert len(talk.bench.delays) == 1
    if how == "abort":
        talk.end(5, talk.producer, commit=False)
    elif how == "newer producer":
        talk.init()
    else:
        talk.bench.pass_ms(TIMEOUT_MS)
        talk.bench.transactions.expire(talk.bench.clock.now_ms())
        talk.bench.settle()
    for broker in (talk.bench, restarted(talk)):
        pass_time(broker, 10_000)
        assert (committed(broker), len(broker.delays)) == ([], 0)


def test_producer_ids_are_never_given_twice(client: Client) -> None:
    first, second = (client.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None) for _ in range(2))
    assert (first.error_code, first.producer_epoch) == (ErrorCode.none, 0)
    assert first.producer_id != second.producer_id
