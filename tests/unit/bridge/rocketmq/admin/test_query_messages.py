"""QUERY_MESSAGE by key finds what a scan of all messages finds, with and without files of the key index.

The messages are of both protocols, and the files of the index are removed and damaged.
"""

from functools import partial
from random import Random
from typing import Any

import pytest

from duolog.bridge.data.publishing.produced_batches import BatchOrigin
from duolog.bridge.rocketmq.admin import query_messages
from duolog.protocol.kafka import batch_builder
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message import Message
from tests.kit.disk import CrashDisk
from tests.kit.rows import first_in_unit
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker

QUERY = RequestCode.QUERY_MESSAGE
NEVER, FOREVER = 0, (1 << 63) - 1
ROWS = 8  # of a block


def broker_on(disk: CrashDisk | None = None) -> RocketMQBroker:
    broker = RocketMQBroker(disk)
    broker.store.keys.rows_in_block = ROWS
    return broker


@pytest.fixture
def broker() -> RocketMQBroker:
    return broker_on()


def ask(
    broker: RocketMQBroker, key: str, begin: int = NEVER, end: int = FOREVER, topic: str = "orders", **fields: Any
) -> Any:
    request = {"topic": topic, "key": key, "maxNum": 32, "beginTimestamp": begin, "endTimestamp": end, **fields}
    return broker.connect().ask(QUERY, **request)


def found(answer: Any) -> list[tuple[int, int]]:
    """The (queue, offset) of each message, as they come: the newest first."""
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    assert answer.code == 0, answer.remark
    assert {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"} <= answer.ext.keys()
    return [(each.queue_id, each.queue_offset) for each in message.decode_all(bytes(answer.body))]


def send(broker: RocketMQBroker, keys: str, unique: str, queue_id: int = 0) -> None:
    raw = properties.encode({"KEYS": keys, "UNIQ_KEY": unique} if keys else {"UNIQ_KEY": unique}).encode()
    one = Message("", b"body", raw, born_ms=broker.clock.now_ms())
    broker.publisher.publish_messages(broker.topic(), queue_id, [one], broker.clock.now_ms())


def produce(broker: RocketMQBroker, *keys: bytes | None, queue_id: int = 0, headers: Any = ()) -> None:
    records = [Record(n, 1, key, b"value", headers) for n, key in enumerate(keys)]
    batch = bytes(batch_builder.build(records, base_offset=0, leader_epoch=0))
    broker.publisher.publish_batch(broker.topic(), queue_id, batch, broker.clock.now_ms())


def mixed(broker: RocketMQBroker, seed: int, count: int = 60) -> dict[str, list[tuple[int, int, int]]]:
    """Send messages of both protocols with random keys: (store time, queue, offset) of each, by key."""
    random, topic = Random(seed), broker.topic()
    expected: dict[str, list[tuple[int, int, int]]] = {}

    def note(queue_id: int, offset: int, *keys: str) -> None:
        for key in keys:
            expected.setdefault(key, []).append((broker.clock.now_ms(), queue_id, offset))

    for number in range(count):
        broker.clock.pass_ms(random.randrange(3))
        queue_id = random.randrange(2)
        offset = topic.queues[queue_id].end_offset
        keys = random.sample(["a", "b", "cc", "ключ"], random.randrange(3))
        if random.random() < 0.6:
            send(broker, " ".join(keys), f"U{number}", queue_id)
            note(queue_id, offset, *keys, f"U{number}")
        else:
            produce(broker, None, " ".join(keys).encode(), b"\xff", b"last", queue_id=queue_id)
            note(queue_id, offset + 1, *keys)
            note(queue_id, offset + 3, "last")
    broker.settle()
    return expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_in_unit(range(4), 2))
def test_search_finds_what_a_walk_would(broker: RocketMQBroker, seed: int) -> None:
    expected = mixed(broker, seed)
    for _ in range(2):  # The second time most blocks are read from their files.
        for key in [*expected, "none", "U", "ключ2"]:
            times = sorted(at for at, *_ in expected.get(key, ())) or [0]
            for begin, end in ((NEVER, FOREVER), (times[0], times[-1]), (times[len(times) // 2], FOREVER), (1, 2)):
                wanted = [(queue, offset) for at, queue, offset in expected.get(key, ()) if begin <= at <= end]
                assert sorted(found(ask(broker, key, begin, end, maxNum=64))) == sorted(wanted), (key, begin, end)
    assert any(path.startswith("keys/") for path in broker.disk.paths())


def test_newest_come_first_and_as_many_as_wanted(broker: RocketMQBroker) -> None:
    for number in range(100):
        broker.clock.pass_ms(1)
        send(broker, "k", f"U{number}", number % 2)
    broker.settle()
    assert found(ask(broker, "k", maxNum=3)) == [(1, 49), (0, 49), (1, 48)]
    assert len(found(ask(broker, "k", maxNum=1000))) == query_messages.MESSAGES_MAX
    assert len(found(ask(broker, "k", maxNum=-1))) == 1


def test_answer_is_bounded_in_bytes(broker: RocketMQBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_messages, "BYTES_MAX", 1)
    for number in range(5):
        send(broker, "k", f"U{number}")
    broker.settle()
    assert len(found(ask(broker, "k"))) == 1


def test_a_kafka_message_is_found_by_its_unique_key(broker: RocketMQBroker) -> None:
    produce(broker, b"k", headers=[("UNIQ_KEY", b"0A0B")])
    broker.settle()
    assert found(ask(broker, "0A0B", _UNIQUE_KEY_QUERY=True)) == [(0, 0)]


@pytest.mark.parametrize("topic", ["orders", "nowhere"])
def test_nothing_found_is_said_so(broker: RocketMQBroker, topic: str) -> None:
    broker.topic()
    answer = ask(broker, "k", topic=topic)
    assert (answer.code, answer.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "can not find message, maybe time range not correct",
    )


# -- Blocks


def blocks(broker: RocketMQBroker) -> list[str]:
    return [path for path in broker.disk.paths() if path.startswith("keys/")]


def filled(broker: RocketMQBroker, count: int = 3 * ROWS + 2) -> None:
    for number in range(count):
        send(broker, f"k{number}", f"U{number}")
    broker.settle()


def opened(broker: RocketMQBroker, key: str) -> int:
    """How many entries a search for the key makes blocks of, and looks into."""
    entries = []
    frames = broker.store.keys._frames
    broker.store.keys._frames = Counted(frames, entries)
    try:
        assert found(ask(broker, key))
    finally:
        broker.store.keys._frames = frames
    return sum(entries)


class Counted:
    def __init__(self, frames: Any, counts: list[int]) -> None:
        self.frames, self.counts = frames, counts

    def from_disk(self, rows: list[Any]) -> Any:
        self.counts.append(len(rows))
        return self.frames.from_disk(rows)


def test_kept_blocks_are_not_made_again(broker: RocketMQBroker) -> None:
    filled(broker)
    assert opened(broker, "k1") == 3 * ROWS + 2 + 1
    assert len(blocks(broker)) == 3
    assert opened(broker, "k1") == 2 + 1, "the rest of the queue, which is no whole block, and the message"


def test_a_block_is_kept_only_when_its_rows_are_durable(broker: RocketMQBroker) -> None:
    topic = broker.topic(flush_mode="async")
    broker.is_stalled = True
    filled_without_sync = [send(broker, f"k{number}", f"U{number}") for number in range(ROWS)]
    broker.store.write()
    assert len(filled_without_sync) == topic.queues[0].visible_end
    assert found(
        broker.connect().ask(QUERY, topic="orders", key="k1", maxNum=1, beginTimestamp=0, endTimestamp=FOREVER)
    )
    assert blocks(broker) == []


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "removed", "of another index"])
def test_a_block_that_is_damaged_is_made_again(broker: RocketMQBroker, damage: str) -> None:
    filled(broker)
    assert found(ask(broker, "k1"))
    before = broker.disk.contents()
    path = blocks(broker)[0]
    handle = broker.disk.open(path)
    if damage == "torn":
        broker.disk.truncate(handle, 50)
    elif damage == "flipped":
        broker.disk.flip(path, 30)
    elif damage == "empty":
        broker.disk.truncate(handle, 0)
    elif damage == "removed":
        broker.disk.remove(path)
    else:
        broker.disk.write(handle, [before[blocks(broker)[1]]], 0)
    broker.disk.close(handle)
    assert found(ask(broker, "k1")) == [(0, 1)]
    assert broker.disk.contents() == before


def test_blocks_survive_a_restart_and_go_with_their_topic(broker: RocketMQBroker) -> None:
    filled(broker)
    assert opened(broker, "k1") > 2 * ROWS
    again = broker_on(broker.disk.after_kill())
    assert opened(again, "k1") == 3
    topic = again.topic()
    again.topics.delete(topic, again.clock.now_ms())
    again.settle()
    assert blocks(again) == []


def test_blocks_of_topics_that_are_gone_are_removed_at_the_start(broker: RocketMQBroker) -> None:
    filled(broker)
    found(ask(broker, "k1"))
    disk = broker.disk.after_kill()
    disk.make_directory("keys/999/0")
    disk.close(disk.open("keys/999/0/00000000000000000000", create=True))
    assert all("999" not in path for path in blocks(broker_on(disk)))


def test_what_has_expired_is_not_found(broker: RocketMQBroker) -> None:
    filled(broker)
    broker.store.retention.trim(broker.topic().queues[0], ROWS + 3, broker.clock.now_ms())
    for _ in range(2):
        assert found(ask(broker, "k2")) == found(ask(broker, f"k{ROWS + 2}")) == []
        assert found(ask(broker, f"k{ROWS + 3}")) == [(0, ROWS + 3)]


def test_what_was_aborted_is_not_found_though_retention_takes_it_meanwhile(broker: RocketMQBroker) -> None:
    topic, now_ms = broker.topic(), broker.clock.now_ms()
    producer, _ = broker.transactions.init("payments", 1000, None, now_ms)
    records = [Record(0, 1, b"k", b"value", ())]
    batch = bytes(batch_builder.build(records, 0, 0, producer=(*producer, 0), is_transactional=True))
    origin = BatchOrigin(transactional_id="payments", adds_partition=True)
    broker.publisher.publish_batch(topic, 0, batch, now_ms, origin)
    broker.transactions.end("payments", producer, now_ms, is_commit=False, renews=True)
    produce(broker, b"k")
    broker.settle()
    search = broker.store.reader.search

    def slow(where: Any, wanted: Any, done: Any) -> None:
        def tidied(found: Any) -> None:
            broker.store.retention.trim(topic.queues[0], 2, now_ms)
            list(broker.transactions.tidy(now_ms))
            assert broker.isolation.get(topic.key(0)) is None
            done(found)

        search(where, wanted, tidied)

    broker.store.reader.search = slow  # type: ignore[method-assign]
    assert found(ask(broker, "k")) == [(0, 2)]


def test_a_disk_without_room_keeps_no_blocks_and_finds_all_the_same(broker: RocketMQBroker) -> None:
    filled(broker)
    broker.disk.make_directory = partial(no_room)  # type: ignore[method-assign]
    assert found(ask(broker, "k1")) == [(0, 1)]
    assert blocks(broker) == []


def no_room(path: str) -> None:
    raise OSError(28, path)


def test_a_search_that_has_to_stop_goes_on_when_asked_again(broker: RocketMQBroker) -> None:
    filled(broker, 10 * ROWS)
    search = broker.store.reader.search

    def with_less(where: Any, wanted: Any, done: Any) -> None:
        wanted.rows_to_build = 3 * ROWS
        search(where, wanted, done)

    broker.store.reader.search = with_less  # type: ignore[method-assign]
    answers = [ask(broker, "k1") for _ in range(4)]
    assert [each.code for each in answers] == [ResponseCode.SYSTEM_BUSY] * 3 + [0]
    assert answers[0].remark == "the keys of older messages are still being collected; ask again"


def test_a_search_that_is_ended_gives_what_it_found(broker: RocketMQBroker) -> None:
    filled(broker, 4 * ROWS)
    pauses = iter([False, False, True])
    broker.store.keys.pause = partial(next, pauses)
    assert ask(broker, "k1").code == ResponseCode.SYSTEM_BUSY
    assert len(blocks(broker)) == 2


def test_a_client_that_left_is_not_answered(broker: RocketMQBroker) -> None:
    filled(broker)
    client: Client = broker.connect()
    client.close()
    assert client.ask(QUERY, topic="orders", key="k1", maxNum=1, beginTimestamp=0, endTimestamp=FOREVER) is None
