"""A produced batch with many delayed records is processed in slices, and appended as one unit."""

from typing import Any

import pytest

from duolog.bridge.kafka.requests import sliced_requests
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.kafka.batch_builder import BatchBuilder
from tests.kit.kafka_frames import frame_of
from tests.unit.adversary import budget
from tests.unit.bridge.kafka.bench import Client, KafkaBench

COUNT = 5_000


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> KafkaBench:
    monkeypatch.setattr(sliced_requests, "PRODUCE_STEPS_MAX", 4)  # The clock stands still, so it ends no slice.
    bench = KafkaBench()
    bench.topic("orders", 2)
    return bench


def records(
    bench: KafkaBench, header: tuple[str, bytes], count: int = COUNT, *, every: int = 1, **producer: Any
) -> bytes:
    builder, now_ms = BatchBuilder(), bench.clock.now_ms()
    for number in range(count):
        builder.append(number, now_ms, b"k%d" % number, b"v", [header] if number % every == 0 else [])
    return bytes(builder.finish(0, 0, **producer))


def produce(batch: bytes, partition: int = 0) -> dict[str, Any]:
    data = [{"name": "orders", "partition_data": [{"index": partition, "records": batch}]}]
    return {"acks": -1, "timeout_ms": 1000, "topic_data": data}


def begin(client: Client, *batches: bytes) -> list[int]:
    """Send Produce requests in one piece, and run no turn of the loop."""
    frames, numbers = b"", []
    for batch in batches:
        client._number += 1
        client._asked.append((client._number, ApiKey.PRODUCE, 9))
        frames += frame_of(ApiKey.PRODUCE, 9, client._number, **produce(batch))
        numbers.append(client._number)
    client.connection.data_received(frames)
    return numbers


def end(bench: KafkaBench, client: Client, number: int) -> Any:
    bench.loop.turn()
    bench.settle()
    bench.loop.turn()
    return client.answer_to(number).responses[0].partition_responses[0]


DELAYED, UNKNOWN = ("TIMER_DELAY_MS", b"60000"), ("TIMER_X", b"1")


@pytest.mark.slow
@pytest.mark.parametrize(("header", "every"), [(DELAYED, 1), (DELAYED, 5), (UNKNOWN, 1)])
def test_turns_stay_within_the_budget(bench: KafkaBench, header: tuple[str, bytes], every: int) -> None:
    client = bench.connect()
    batch = records(bench, header, COUNT * min(every, 3), every=every)
    with budget.counted(calls=True) as turn:
        (number,) = begin(client, batch)
    most = turn.units
    turns = 1
    while len(bench.kafka_context.sliced_requests):
        with budget.counted(calls=True) as turn:
            bench.loop.turn_once()
        most, turns = max(most, turn.units), turns + 1
    assert end(bench, client, number).error_code is ErrorCode.none
    assert turns > COUNT // 64 // 4
    assert most < budget.UNITS_MAX


def test_batch_is_appended_by_its_last_slice_and_later_batches_follow_it(bench: KafkaBench) -> None:
    client, other = bench.connect(), bench.connect()
    queue = bench.topic("orders", 2).queues[0]
    first, second = begin(client, records(bench, DELAYED, every=2), records(bench, ("x", b""), 1))
    for _ in range(3):
        bench.loop.turn_once()
    assert (queue.end_offset, len(bench.delays.timers)) == (0, 0)
    (third,) = begin(other, records(bench, ("x", b""), 1))
    assert queue.end_offset == 1, "another client does not wait"
    assert end(bench, other, third).base_offset == 0
    assert end(bench, client, first).error_code is ErrorCode.none
    assert end(bench, client, second).base_offset == 1 + COUNT // 2
    assert len(bench.delays.timers) == COUNT // 2


def test_wrong_last_record_refuses_the_batch(bench: KafkaBench) -> None:
    client = bench.connect()
    builder, now_ms = BatchBuilder(), bench.clock.now_ms()
    for number in range(COUNT):
        builder.append(number, now_ms, b"k", b"v", [DELAYED if number < COUNT - 1 else ("TIMER_DELAY_MS", b"soon")])
    (number,) = begin(client, bytes(builder.finish(0, 0)))
    answer = end(bench, client, number)
    assert answer.error_code is ErrorCode.invalid_record
    assert [error.batch_index for error in answer.record_errors] == [COUNT - 1]
    assert len(bench.delays.timers) == 0


def test_batch_for_a_topic_that_is_deleted_meanwhile_is_refused(bench: KafkaBench) -> None:
    client = bench.connect()
    (number,) = begin(client, records(bench, DELAYED))
    bench.topics.delete(bench.topic("orders"), bench.clock.now_ms())
    assert end(bench, client, number).error_code is ErrorCode.unknown_topic_or_partition
    assert len(bench.delays.timers) == 0


@pytest.mark.slow
def test_repeated_batch_of_two_connections_is_stored_once(bench: KafkaBench) -> None:
    one, two = bench.connect(), bench.connect()
    producer_id = one.ask(ApiKey.INIT_PRODUCER_ID, 4).producer_id
    batch = records(bench, DELAYED, producer=(producer_id, 0, 0))
    (first,), (second,) = begin(one, batch), begin(two, batch)
    codes = [end(bench, one, first).error_code, end(bench, two, second).error_code]
    assert codes == [ErrorCode.none] * 2
    assert len(bench.delays.timers) == COUNT
