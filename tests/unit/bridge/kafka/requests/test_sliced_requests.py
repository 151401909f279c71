"""Long requests run in slices: what other requests see between slices, and which state a request leaves."""

import gc
from typing import Any

import pytest

from duolog.bridge.config import KafkaOptions, LimitsOptions
from duolog.bridge.kafka.requests.connection import KafkaConnection
from duolog.bridge.kafka.requests.sliced_requests import AT_ONCE_MAX, STEPS_MAX
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.kit.kafka_frames import frame_of
from tests.unit.bridge.batches import batch
from tests.unit.bridge.kafka.bench import Client, KafkaBench

NAMES = 3 * STEPS_MAX


def begin(client: Client, *requests: tuple[int, int, dict[str, Any]]) -> list[int]:
    """Send requests in one piece, and run no turn of the loop."""
    frames = b""
    numbers = []
    for key, version, values in requests:
        client._number += 1
        client._asked.append((client._number, key, version))
        frames += frame_of(key, version, client._number, **values)
        numbers.append(client._number)
    client.connection.data_received(frames)
    return numbers


def created(count: int) -> dict[str, Any]:
    return {"topics": [{"name": f"t{number}", "num_partitions": 1, "replication_factor": 1} for number in range(count)]}


@pytest.mark.slow
def test_large_request_has_its_slices_between_those_of_others(bench: KafkaBench) -> None:
    large, other = bench.connect(), bench.connect()
    (first,) = begin(large, (ApiKey.CREATE_TOPICS, 2, created(NAMES)))
    before = len(bench.topics)
    assert 0 < before < NAMES, "one slice is done at once"
    (number,) = begin(other, (ApiKey.FIND_COORDINATOR, 4, {"coordinator_keys": ("g",)}))
    bench.server.flush()
    assert other.answer_to(number) is not None, "another client does not wait for the end"
    assert (large.answer_to(first), len(bench.topics)) == (None, before)
    bench.loop.turn()
    assert [each.error_code for each in large.answer_to(first).topics] == [ErrorCode.none] * NAMES


def test_later_requests_of_a_connection_wait_for_the_end(bench: KafkaBench) -> None:
    client = bench.connect()
    delete = {"topic_names": (f"t{NAMES - 1}",)}
    first, second = begin(client, (ApiKey.CREATE_TOPICS, 2, created(NAMES)), (ApiKey.DELETE_TOPICS, 1, delete))
    assert client.connection.unanswered == 1, "the second request is not parsed"
    bench.loop.turn()
    assert client.answer_to(first).topics[-1].error_code is ErrorCode.none
    assert client.answer_to(second).responses[0].error_code is ErrorCode.none
    assert not client.connection.is_busy


@pytest.mark.slow
def test_many_large_requests_have_one_slice_in_a_turn(bench: KafkaBench) -> None:
    clients = [bench.connect() for _ in range(5)]
    for client in clients:
        begin(client, (ApiKey.METADATA, 12, {"topics": [{"name": f"a b{number}"} for number in range(NAMES)]}))
    jobs = bench.kafka_context.sliced_requests._jobs
    turns = 0
    while len(jobs) == 5:
        first = jobs[0]
        while len(jobs) == 5 and jobs[0] is first:
            bench.loop._soon.popleft()()
        turns += 1
        assert len(jobs) < 5 or jobs[-1] is first, "the one that had its slice goes behind the others"
    assert turns > 5
    bench.loop.turn()
    assert all(len(client.answer_to(1).topics) == NAMES for client in clients)


@pytest.mark.slow
def test_few_of_many_large_requests_in_one_turn_run_a_slice_at_once(bench: KafkaBench) -> None:
    clients = [bench.connect() for _ in range(AT_ONCE_MAX + 3)]
    for client in clients:
        begin(client, (ApiKey.METADATA, 12, {"topics": [{"name": f"a b{number}"} for number in range(NAMES)]}))
    assert (len(bench.kafka_context.sliced_requests._jobs), len(bench.kafka_context.sliced_requests._new)) == (
        AT_ONCE_MAX,
        3,
    )
    small = bench.connect()
    (number,) = begin(small, (ApiKey.METADATA, 12, {"topics": [{"name": "a b"}]}))
    while len(bench.kafka_context.sliced_requests) == len(clients) + 1:
        bench.loop._soon.popleft()()
    bench.server.flush()
    assert small.answer_to(number) is not None, "it waits for the first slices of the others only"
    bench.loop.turn()
    assert all(len(client.answer_to(1).topics) == NAMES for client in clients)


def test_fetch_of_many_partitions_is_read_in_slices(bench: KafkaBench) -> None:
    bench.write(bench.topic("orders", 1000), b"a", partition=999)
    client = bench.connect()
    partitions = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 100} for number in range(1000)]
    asked = {
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 1000,
        "topics": [{"topic": "orders", "partitions": partitions}],
    }
    (first,) = begin(client, (ApiKey.FETCH, 4, asked))
    slices = 0
    while len(bench.kafka_context.sliced_requests):
        bench.loop._soon.popleft()()
        slices += 1
    assert slices >= 4
    bench.loop.turn()
    found = client.answer_to(first).responses[0].partitions
    assert [bool(each.records) for each in found] == [False] * 999 + [True]
    assert bench.server.connections.answer_bytes == 0


def test_fetch_of_many_partitions_waits_and_is_completed(bench: KafkaBench) -> None:
    topic = bench.topic("orders", 1000)
    client = bench.connect()
    partitions = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 100} for number in range(1000)]
    asked = {
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 1000,
        "topics": [{"topic": "orders", "partitions": partitions}],
    }
    (first,) = begin(client, (ApiKey.FETCH, 4, asked))
    bench.loop.turn()
    assert client.answer_to(first) is None
    bench.write(topic, b"a", partition=999)
    assert client.answer_to(first).responses[0].partitions[999].records


def test_produce_to_many_partitions_is_appended_in_slices_and_in_order(bench: KafkaBench) -> None:
    topic = bench.topic("orders", 1000)
    client = bench.connect()
    records = bytes(batch([b"a"]))
    many = [{"index": number, "records": records} for number in range(1000)]
    last = [{"index": 999, "records": bytes(batch([b"b", b"b"]))}]
    asked = [{"acks": -1, "topic_data": [{"name": "orders", "partition_data": data}]} for data in (many, last)]
    first, second = begin(client, *((ApiKey.PRODUCE, 9, each) for each in asked))
    assert 0 < sum(queue.end_offset for queue in topic.queues) < 1000
    bench.loop.turn()
    assert client.answer_to(first).responses[0].partition_responses[999].base_offset == 0
    assert client.answer_to(second).responses[0].partition_responses[0].base_offset == 1


def test_request_ends_with_its_connection(bench: KafkaBench) -> None:
    client = bench.connect()
    begin(client, (ApiKey.CREATE_TOPICS, 2, created(NAMES)))
    client.transport.close()
    bench.loop.turn()
    assert len(bench.topics) < NAMES
    assert len(bench.kafka_context.sliced_requests) == 0
    assert bench.server.connections.answer_bytes == 0


def young_connections() -> int:
    return sum(isinstance(each, KafkaConnection) for each in gc.get_objects(generation=0))


def test_closed_connection_is_freed_without_the_garbage_collector(bench: KafkaBench) -> None:
    """In an idle process none comes, and a connection that stays keeps memory around it from being given back."""
    gc.disable()
    gc.collect(0)  # From here on, generation 0 has the objects of this test alone.
    try:
        client = bench.connect()
        assert young_connections() == 1
        begin(client, (ApiKey.CREATE_TOPICS, 2, created(NAMES)))
        client.transport.close()
        bench.loop.turn()
        del client.transport._protocol, client  # uvloop's transport lets go of its protocol, too.
        assert young_connections() == 0
    finally:
        gc.enable()


def test_bytes_of_a_request_that_waits_are_charged_and_given_back(bench: KafkaBench) -> None:
    client = bench.connect()
    begin(client, (ApiKey.CREATE_TOPICS, 2, created(NAMES)))
    assert bench.server.connections.answer_bytes == client.connection.answers.pending_bytes > 10 * NAMES
    bench.loop.turn()
    assert bench.server.connections.answer_bytes == client.connection.answers.pending_bytes == 0


@pytest.mark.slow
def test_without_room_for_answers_one_request_builds_its_answer_further(
    bench: KafkaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog.bridge.kafka.requests.sliced_requests.STEPS_MAX", 10)
    limit = 1 << 20
    bench.server.connections.limits = LimitsOptions(answer_bytes_max=limit)
    names = [f"t{number}" for number in range(50)]
    for name in names:
        bench.topic(name, 1)
    clients = [bench.connect() for _ in range(20)]
    asked = {"resources": [{"resource_type": 2, "resource_name": name} for name in names], "include_synonyms": True}
    asked["include_documentation"] = True
    for client in clients:
        begin(client, (ApiKey.DESCRIBE_CONFIGS, 4, asked))
    gone = clients[-1]
    small, number = bench.connect(), 0
    most_bytes = 0
    while len(bench.kafka_context.sliced_requests):
        assert bench.loop.turn_once()
        most_bytes = max(most_bytes, bench.server.connections.answer_bytes)
        if not number and bench.kafka_context.sliced_requests._aside:
            (number,) = begin(small, (ApiKey.DESCRIBE_CONFIGS, 4, asked | {"resources": asked["resources"][:1]}))
            assert small.answer_to(number) is None, "its answer leaves at the end of the turn"
            bench.server.flush()
            assert small.answer_to(number) is not None, "a small request does not wait for room"
            gone.transport.close()
    bench.loop.turn()
    assert number
    built_bytes = sum(len(client.transport.taken) for client in clients)
    assert [each.resource_name for each in clients[0].answer_to(1).results] == names
    assert all(not client.connection.unanswered for client in clients[:-1])
    assert built_bytes > 3 * limit > 1.5 * most_bytes
    assert bench.server.connections.answer_bytes == 0
    assert not any(client.connection.on_close for client in clients), "nothing of a request stays"


def test_answer_that_would_be_too_large_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    bench = KafkaBench(kafka=KafkaOptions(answer_bytes_max=64 << 10))
    bench.topic("orders", 1000)
    client, other = bench.connect(), bench.connect()
    asked = {"topics": [{"name": "orders", "partition_indexes": tuple(range(5000))}], "group_id": "g"}
    with caplog.at_level("INFO", "net"):
        client.send(ApiKey.OFFSET_FETCH, 7, **asked)
    assert client.is_closed
    assert "kafka.answer_bytes_max=65536" in caplog.text
    assert other.ask(ApiKey.OFFSET_FETCH, 7, topics=asked["topics"][:0], group_id="g") is not None
    assert bench.server.connections.answer_bytes == 0


def test_fault_in_a_later_slice_is_answered(bench: KafkaBench) -> None:
    client = bench.connect()
    bench.faults.is_strict = False
    begin(client, (ApiKey.DELETE_GROUPS, 2, {"groups_names": tuple(f"g{number}" for number in range(NAMES))}))

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    bench.client_protocols.active = broken  # type: ignore[method-assign, assignment]
    bench.loop.turn()
    assert client.is_closed, "DeleteGroups has no place for an error of the whole"
    assert bench.faults.counts["kafka delete_groups"] == 1
