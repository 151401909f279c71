"""Answers to Fetch: which batches, within which budget, when the request waits; and that a wait ends once."""

from typing import Any

import pytest

from duolog.bridge.config import KafkaOptions, LimitsOptions
from duolog.bridge.kafka import TABLE
from duolog.bridge.kafka.fetch import COLD_MS_MAX, READ_AT_ONCE, WAIT_MS_MAX
from duolog.bridge.net.purgatory import HELD_QUEUE_BYTES, HELD_REQUEST_BYTES
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.kafka import batch_builder, record_batch, record_reader
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.kit.core import UNANSWERED_MAX
from tests.unit.bridge.batches import batch
from tests.unit.bridge.kafka.bench import Client, KafkaBench

OK = ErrorCode.none
VERSIONS = range(TABLE[ApiKey.FETCH].min_version, TABLE[ApiKey.FETCH].max_version + 1)


def request(*offsets: int, wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 20, **values: Any) -> Any:
    """A Fetch of partitions 0, 1, ... of `orders`, each from its offset on."""
    partition = {"partition_max_bytes": 1 << 20, **values.pop("each", {})}
    parts = [{"partition": index, "fetch_offset": offset, **partition} for index, offset in enumerate(offsets)]
    topics = [{"topic": values.pop("topic", "orders"), "partitions": parts}]
    return {"max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": max_bytes, "topics": topics, **values}


def fetch(client: Client, version: int, *offsets: int, **values: Any) -> Any:
    answer = client.ask(ApiKey.FETCH, version, **request(*offsets, **values))
    return answer and answer.responses[0].partitions


def values_of(partition: Any) -> list[bytes | None]:
    parts = record_batch.split(partition.records or b"")
    return [record.value for part in parts for record in record_reader.records(part, 1 << 20)]


def answered(client: Client, number: int) -> Any:
    answer = client.answer_to(number)
    return answer and answer.responses[0].partitions


def write_many(bench: KafkaBench, topic: Topic, partition: int = 0) -> None:
    """Append 20 batches of 50,000 bytes, so that earlier records are not in the write buffer any more."""
    for _ in range(20):
        bench.write(topic, bytes(50_000), partition=partition)


# -- What is there


@pytest.mark.parametrize("version", VERSIONS)
def test_answer_begins_with_the_batch_that_contains_the_offset(bench: KafkaBench, client: Client, version: int) -> None:
    topic = bench.topic()
    bench.write(topic, b"a", b"b")
    bench.write(topic, b"c", b"d")
    bench.write(topic, b"e")
    found, empty = fetch(client, version, 3, 0)
    assert values_of(found) == [b"c", b"d", b"e"]
    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (OK, 5, 5)
    assert (empty.error_code, empty.high_watermark, values_of(empty)) == (OK, 0, [])
    if version >= 5:
        assert found.log_start_offset == 0


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"each": {"fetch_offset": 3}}, ErrorCode.offset_out_of_range),
        ({"each": {"fetch_offset": 0}}, ErrorCode.offset_out_of_range),  # below the log start
        ({"each": {"fetch_offset": -1}}, ErrorCode.offset_out_of_range),
        ({"topic": "absent"}, ErrorCode.unknown_topic_or_partition),
        ({"each": {"partition": 7}}, ErrorCode.unknown_topic_or_partition),
        ({"each": {"current_leader_epoch": 1}}, ErrorCode.unknown_leader_epoch),
        ({"each": {"current_leader_epoch": 0}}, OK),
    ],
)
def test_errors_are_answered_at_once(
    bench: KafkaBench, client: Client, values: dict[str, Any], error: ErrorCode
) -> None:
    topic = bench.topic()
    bench.write(topic, b"a", b"b")
    bench.store.retention.trim(topic.queues[0], 1, bench.clock.now_ms())
    bench.settle()
    (partition,) = fetch(client, 12, 1, wait_ms=500, **values)
    assert partition.error_code is error
    assert (partition.high_watermark == -1) is (error is not OK)
    assert len(bench.purgatory) == 0


def test_read_committed_is_answered_with_an_empty_list_of_aborted_transactions(
    bench: KafkaBench, client: Client
) -> None:
    bench.topic()
    (partition,) = fetch(client, 11, 0, isolation_level=1)
    assert partition.aborted_transactions == ()


def test_session_id_of_another_broker_is_not_found(bench: KafkaBench, client: Client) -> None:
    bench.topic()
    answer = client.ask(ApiKey.FETCH, 12, **request(0, session_id=5, session_epoch=3))
    assert (answer.error_code, answer.responses) == (ErrorCode.fetch_session_id_not_found, ())
    assert client.ask(ApiKey.FETCH, 12, session_id=5, session_epoch=-1, topics=[]).error_code is OK


def test_messages_of_rocketmq_come_as_batches(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    bench.publish(topic, b"a", b"b")
    bench.write(topic, b"c")
    (partition,) = fetch(client, 12, 0)
    assert values_of(partition) == [b"a", b"b", b"c"]


# -- The budget


def test_budget_is_used_in_the_order_of_the_request(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic(queues=3)
    for partition in range(3):
        bench.write(topic, bytes(1000), partition=partition)
        bench.write(topic, bytes(1000), partition=partition)
    sizes = [len(values_of(partition)) for partition in fetch(client, 12, 0, 0, 0, max_bytes=2500)]
    assert sizes == [2, 1, 0]


def test_answer_ends_at_fetch_bytes_max() -> None:
    bench = KafkaBench(kafka=KafkaOptions(fetch_bytes_max=2500))
    topic = bench.topic(queues=2)
    for partition in (0, 0, 1, 1):
        bench.write(topic, bytes(1000), partition=partition)
    assert [len(values_of(partition)) for partition in fetch(bench.connect(), 12, 0, 0)] == [2, 1]


def test_first_batch_is_answered_however_large(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    bench.write(topic, bytes(100_000))
    bench.write(topic, b"next", partition=1)
    first, second = fetch(client, 12, 0, 0, max_bytes=10, each={"partition_max_bytes": 10})
    assert (len(values_of(first)), values_of(second)) == (1, [])


# -- Waiting


def test_waiting_fetch_is_answered_in_the_turn_of_the_record(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    number = client.send(ApiKey.FETCH, 12, **request(0, 0, wait_ms=500))
    assert answered(client, number) is None
    bench.write(topic, b"a", partition=1)
    assert [values_of(partition) for partition in answered(client, number)] == [[], [b"a"]]
    assert len(bench.purgatory) == 0
    assert client.connection.on_close == []


@pytest.mark.parametrize(("wait_ms", "ends_after_ms"), [(500, 500), (2**31 - 1, WAIT_MS_MAX)])
def test_waiting_fetch_ends_when_its_time_is_up(
    bench: KafkaBench, client: Client, wait_ms: int, ends_after_ms: int
) -> None:
    bench.topic()
    number = client.send(ApiKey.FETCH, 12, **request(0, wait_ms=wait_ms))
    bench.pass_ms(ends_after_ms - 1)
    assert answered(client, number) is None
    bench.pass_ms(1)
    assert [values_of(partition) for partition in answered(client, number)] == [[]]


def test_min_bytes_count_over_all_partitions(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    number = client.send(ApiKey.FETCH, 12, **request(0, 0, wait_ms=500, min_bytes=2000))
    bench.write(topic, bytes(900))
    bench.write(topic, bytes(900), partition=1)
    assert answered(client, number) is None
    bench.write(topic, bytes(900))
    assert [len(values_of(partition)) for partition in answered(client, number)] == [2, 1]


def test_less_than_min_bytes_comes_when_the_time_is_up(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    bench.write(topic, b"a")
    number = client.send(ApiKey.FETCH, 12, **request(0, wait_ms=500, min_bytes=2000))
    bench.write(topic, b"b")
    bench.pass_ms(500)
    assert [values_of(partition) for partition in answered(client, number)] == [[b"a", b"b"]]


def test_min_bytes_above_the_budget_are_not_waited_for(bench: KafkaBench, client: Client) -> None:
    bench.write(bench.topic(), b"a" * 1000)
    found = fetch(client, 12, 0, wait_ms=500, min_bytes=2**31 - 1, max_bytes=1000)
    assert [values_of(each) for each in found] == [[b"a" * 1000]]


def test_partition_named_twice_is_answered_once(bench: KafkaBench, client: Client) -> None:
    bench.topic()
    asked = request(0, wait_ms=500)
    asked["topics"][0]["partitions"] *= 2
    number = client.send(ApiKey.FETCH, 12, **asked)
    assert len(bench.purgatory) == 1
    bench.pass_ms(500)
    assert len(client.answer_to(number).responses[0].partitions) == 1


def test_records_are_not_fetched_before_the_log_keeps_them(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    number = client.send(ApiKey.FETCH, 12, **request(0, wait_ms=500))
    bench.is_stalled = True
    bench.connect().send(
        ApiKey.PRODUCE, 9, acks=1,
        topic_data=[{"name": "orders", "partition_data": [{"index": 0, "records": record_batch_of(b"a")}]}],
    )  # fmt: skip
    assert (topic.queues[0].end_offset, answered(client, number)) == (1, None)
    bench.settle()
    assert [values_of(partition) for partition in answered(client, number)] == [[b"a"]]


def test_records_that_the_log_does_not_keep_yet_count_towards_min_bytes_when_it_does(
    bench: KafkaBench, client: Client
) -> None:
    bench.topic()
    bench.is_stalled = True
    bench.connect().send(
        ApiKey.PRODUCE, 9, acks=1,
        topic_data=[{"name": "orders", "partition_data": [{"index": 0, "records": record_batch_of(bytes(1000))}]}],
    )  # fmt: skip
    number = client.send(ApiKey.FETCH, 12, **request(0, wait_ms=500, min_bytes=1000))
    assert answered(client, number) is None
    bench.settle()
    assert [values_of(partition) for partition in answered(client, number)] == [[bytes(1000)]]


def test_record_of_a_partition_that_was_read_before_a_cold_read_ends_the_wait(
    bench: KafkaBench, client: Client
) -> None:
    topic = bench.topic()
    write_many(bench, topic, partition=1)
    bench.disk.cached = False
    asked = request(0, 0, wait_ms=500, min_bytes=51_000, each={"partition_max_bytes": 60_000})
    number = client.send(ApiKey.FETCH, 12, **asked)
    bench.write(topic, bytes(2_000))
    assert answered(client, number) is None
    bench.reader_threads.run()
    bench.settle()
    assert [len(values_of(partition)) for partition in answered(client, number)] == [1, 1]


def record_batch_of(value: bytes) -> bytes:
    builder = batch_builder.BatchBuilder()
    builder.append(0, -1, None, value)
    return builder.finish(0, -1)


def test_deleted_topic_ends_the_wait(bench: KafkaBench, client: Client) -> None:
    bench.topic()
    number = client.send(ApiKey.FETCH, 12, **request(0, wait_ms=500, min_bytes=1000))
    bench.connect().ask(ApiKey.DELETE_TOPICS, 3, topic_names=("orders",))
    (partition,) = answered(client, number)
    assert partition.error_code is ErrorCode.unknown_topic_or_partition


def test_log_start_that_moves_does_not_delay_min_bytes(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    bench.write(topic, bytes(50_000))
    number = client.send(ApiKey.FETCH, 12, **request(1, wait_ms=500, min_bytes=1000))
    bench.store.retention.trim(topic.queues[0], 1, bench.clock.now_ms())
    bench.settle()
    bench.write(topic, bytes(2000))
    assert values_of(answered(client, number)[0]) == [bytes(2000)]


@pytest.mark.parametrize("isolation", [0, 1])
def test_records_of_partitions_that_were_read_in_an_earlier_turn_are_answered(
    bench: KafkaBench, client: Client, isolation: int
) -> None:
    topic = bench.topic(queues=2 * READ_AT_ONCE)
    run_turns, bench.loop.turn = bench.loop.turn, lambda: None
    bench.is_stalled = True
    bench.publisher.publish_batch(topic, 0, batch([b"a"]), bench.clock.now_ms())
    offsets = [0] * topic.queue_count
    number = client.send(ApiKey.FETCH, 12, **request(*offsets, wait_ms=500, isolation_level=isolation))
    bench.settle_log()  # The record becomes visible after the turn in which its partition was read.
    run_turns()
    assert values_of(answered(client, number)[0]) == [b"a"]
    bench.loop.turn = run_turns


def test_topic_that_is_deleted_between_two_turns_of_a_fetch_is_unknown(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic(queues=2 * READ_AT_ONCE)
    run_turns, bench.loop.turn = bench.loop.turn, lambda: None
    bench.topic("other")
    topics = [
        {"topic": name, "partitions": [{"partition": n, "fetch_offset": 0} for n in range(count)]}
        for name, count in (("other", 1), ("orders", topic.queue_count))
    ]
    number = client.send(ApiKey.FETCH, 12, **request(wait_ms=500) | {"topics": topics})
    bench.topics.delete(bench.topic("other"), bench.clock.now_ms())
    run_turns()
    assert answered(client, number)[0].error_code is ErrorCode.unknown_topic_or_partition
    bench.loop.turn = run_turns


def test_later_requests_are_handled_but_their_answers_wait(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    waiting = client.send(ApiKey.FETCH, 12, **request(0, wait_ms=500))
    behind = client.send(ApiKey.METADATA, 12, topics=None)
    assert client.answer_to(behind) is None
    bench.write(topic, b"a")
    assert values_of(answered(client, waiting)[0]) == [b"a"]
    assert client.answer_to(behind) is not None


def test_closed_connection_releases_its_fetch(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    client.send(ApiKey.FETCH, 12, **request(0, wait_ms=500))
    assert len(bench.purgatory) == 1
    client.connection.close("")
    assert client.is_closed
    assert len(bench.purgatory) == 0
    bench.write(topic, b"a")


def test_fetch_is_answered_at_once_when_the_purgatory_is_full(bench: KafkaBench, client: Client) -> None:
    bench.topic()
    bench.purgatory._bytes_max = HELD_REQUEST_BYTES + HELD_QUEUE_BYTES
    bench.connect().send(ApiKey.FETCH, 12, **request(0, wait_ms=500))
    assert [values_of(partition) for partition in fetch(client, 12, 0, wait_ms=500)] == [[]]


# -- What is not in memory


def test_cold_read_does_not_delay_other_clients(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    bench.write(topic, b"early")
    write_many(bench, topic)
    bench.write(topic, b"other", partition=1)
    bench.disk.cached = False
    number = client.send(ApiKey.FETCH, 12, **request(0, 0, wait_ms=500, each={"partition_max_bytes": 1}))
    assert answered(client, number) is None
    assert values_of(fetch(bench.connect(), 12, 20)[0]) == [bytes(50_000)]
    bench.reader_threads.run()
    bench.settle()
    assert [values_of(partition) for partition in answered(client, number)] == [[b"early"], [b"other"]]


def test_fetch_that_has_waited_long_for_a_cold_read_begins_no_other_one(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    write_many(bench, topic)
    write_many(bench, topic, partition=1)
    bench.disk.cached = False
    number = client.send(ApiKey.FETCH, 12, **request(0, 0, wait_ms=500, each={"partition_max_bytes": 1}))
    assert answered(client, number) is None
    bench.clock.pass_ms(COLD_MS_MAX)
    bench.reader_threads.run()
    bench.settle()
    assert [len(values_of(partition)) for partition in answered(client, number)] == [1, 0]
    number = client.send(ApiKey.FETCH, 12, **request(0, 0, wait_ms=500, each={"partition_max_bytes": 1}))
    bench.reader_threads.run()
    bench.settle()
    assert [len(values_of(partition)) for partition in answered(client, number)] == [1, 1]


def test_records_found_before_a_cold_read_are_charged_until_they_are_answered(
    bench: KafkaBench, client: Client
) -> None:
    topic = bench.topic()
    write_many(bench, topic, partition=1)
    bench.write(topic, bytes(50_000))
    bench.disk.cached = False
    number = client.send(ApiKey.FETCH, 12, **request(0, 0, wait_ms=500))
    assert answered(client, number) is None
    assert client.connection.answers.pending_bytes == bench.server.connections.answer_bytes > 50_000
    bench.reader_threads.run()
    bench.settle()
    assert [len(values_of(partition)) for partition in answered(client, number)] == [1, 19], "max_bytes"
    assert client.connection.answers.pending_bytes == bench.server.connections.answer_bytes == 0


def test_fetch_that_reads_on_is_limited_by_the_room_that_is_left(bench: KafkaBench, client: Client) -> None:
    bench.server.connections.limits = LimitsOptions(answer_bytes_max=1 << 20)
    topic = bench.topic()
    write_many(bench, topic)
    bench.write(topic, bytes(20_000), partition=1)
    bench.write(topic, bytes(20_000), partition=1)
    bench.disk.cached = False
    number = client.send(ApiKey.FETCH, 12, **request(0, 0, wait_ms=500, each={"partition_max_bytes": 60_000}))
    other = bench.connect().connection
    other.answers.charge(1 << 20)
    bench.reader_threads.run()
    bench.settle()
    assert [len(values_of(partition)) for partition in answered(client, number)] == [1, 0]
    other.answers.charge(-1 << 20)
    found = fetch(client, 12, 20, 0, each={"partition_max_bytes": 60_000})
    assert [len(values_of(partition)) for partition in found] == [0, 2]


def test_cold_read_for_a_closed_connection_is_dropped(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    write_many(bench, topic)
    bench.disk.cached = False
    client.send(ApiKey.FETCH, 12, **request(0, wait_ms=500))
    client.connection.close("")
    assert client.is_closed
    bench.reader_threads.run()
    bench.settle()
    assert len(bench.purgatory) == 0


@pytest.mark.slow
def test_waiting_fetches_are_charged_by_the_bytes_that_they_keep(bench: KafkaBench) -> None:
    """Beyond the limit of a connection's unsent answers it is not read from until some of them are answered."""
    bench.topic("many", 1000)
    client = bench.connect()
    partitions = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 100} for n in range(1000)]
    asked = {
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 1000,
        "topics": [{"topic": "many", "partitions": partitions}],
    }
    sent = 0
    while not client.transport.is_paused:
        client.send(ApiKey.FETCH, 4, **asked)
        sent += 1
    kept_bytes = client.connection.answers.pending_bytes
    assert sent < UNANSWERED_MAX, "it is not the number of requests that stops it"
    assert 0 < kept_bytes - bench.server.connections.limits.unsent_bytes_max <= kept_bytes // sent
    assert (bench.server.connections.answer_bytes, len(bench.purgatory)) == (kept_bytes, sent)
    bench.pass_ms(500)
    bench.loop.turn()
    assert (bench.server.connections.answer_bytes, client.transport.is_paused, len(bench.purgatory)) == (0, False, 0)
