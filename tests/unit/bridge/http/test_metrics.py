"""Proves what a scrape says about topics and groups, in the names of all three families, and how much work it is."""

import asyncio
import time
from typing import Final

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from duolog.bridge.http.metrics.exposition import families, parts
from duolog.bridge.http.metrics.lines import LINES_IN_PART, Scrape, escaped
from duolog.bridge.monitoring.histogram import Histogram
from duolog.bridge.records.groups import CommittedOffset
from tests.kit.core import ManualCore
from tests.kit.http import HttpBench, HttpDialogue
from tests.unit.bridge.batches import batch
from tests.unit.bridge.publish_bench import now
from tests.unit.bridge.rocketmq.broker import RocketMQBroker

SCRAPES = 5
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost:9644\r\nConnection: close\r\n\r\n"
NODE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "duolog"}


def scraped(core: ManualCore, scrape: Scrape | None = None) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the labels and values of all samples by name."""
    text = b"".join(part or b"" for part in parts(core.http_context(), scrape or Scrape())).decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def commit(core: ManualCore, group: str, *positions: tuple[int, int]) -> None:
    core.group_offsets.commit(group, [CommittedOffset(key, at) for key, at in positions], core.clock.now_ms())


def test_a_topic_has_the_same_figures_in_all_families() -> None:
    core = ManualCore()
    topic = core.topic("orders.eu", 2, message_type="FIFO")
    core.publish(topic, *[b"x"] * 5, queue_id=0)
    core.publish(topic, *[b"x"] * 3, queue_id=1)
    core.store.retention.trim(topic.queues[0], 2, core.clock.now_ms())
    found = scraped(core)
    in_bytes = sum(queue.index.total_bytes for queue in topic.queues)
    assert in_bytes > 8
    assert found["duolog_topic_messages_in_total"] == [({"topic": "orders.eu"}, 8)]
    assert found["duolog_topic_bytes_in_total"] == [({"topic": "orders.eu"}, in_bytes)]
    assert found["kafka_topic_partitions"] == [({"topic": "orders.eu"}, 2)]
    assert [value for _, value in found["kafka_topic_partition_current_offset"]] == [5, 3]
    assert found["kafka_topic_partition_oldest_offset"] == [
        ({"topic": "orders.eu", "partition": "0"}, 2), ({"topic": "orders.eu", "partition": "1"}, 0)
    ]  # fmt: skip
    labels = NODE | {"topic": "orders|eu", "message_type": "fifo", "is_system": "false"}
    assert found["rocketmq_messages_in_total"] == [(labels, 8)]
    assert found["rocketmq_throughput_in_total"] == [(labels, in_bytes)]


def test_a_group_has_the_same_lag_in_all_families() -> None:
    core = ManualCore()
    topic = core.topic("orders.eu", 2)
    core.publish(topic, *[b"x"] * 5, queue_id=0)
    core.publish(topic, *[b"x"] * 3, queue_id=1)
    commit(core, "billing.eu", (topic.key(0), 1))
    found = scraped(core)
    own = {"group": "billing.eu", "topic": "orders.eu"}
    kafka = {"consumergroup": "billing.eu", "topic": "orders.eu"}
    assert found["duolog_group_lag_messages"] == [(own, 7)]
    assert found["duolog_group_lag_without_position_messages"] == [(own, 3)]
    assert found["kafka_consumergroup_current_offset"] == [(kafka | {"partition": "0"}, 1)]
    assert found["kafka_consumergroup_current_offset_sum"] == [(kafka, 1)]
    assert found["kafka_consumergroup_lag"] == [(kafka | {"partition": "0"}, 4)]
    assert found["kafka_consumergroup_lag_sum"] == [(kafka, 4)]
    assert found["kafka_consumergroup_members"] == [({"consumergroup": "billing.eu"}, 0)]
    read = {"consumer_group": "billing|eu", "topic": "orders|eu", "is_retry": "false", "is_system": "false"}
    assert found["rocketmq_consumer_lag_messages"] == [(NODE | read, 7)]


def test_messages_that_a_rocketmq_group_was_given_are_counted() -> None:
    core = ManualCore()
    topic = core.topic("orders")
    counts = core.rocketmq_context.groups.consume_counts
    counts.add("billing", topic.number, 3, 300, 0)
    counts.add("billing", topic.number, 4, 50, 0)
    counts.add("billing", 999, 1, 1, 0)  # Its topic is deleted.
    ((labels, value),) = scraped(core)["rocketmq_messages_out_total"]
    assert (labels["consumer_group"], labels["topic"], value) == ("billing", "orders", 7)
    counts.add("billing", topic.number, 1, 7, 48 * 3_600_000)
    assert scraped(core)["rocketmq_messages_out_total"][0][1] == 8


def test_names_with_any_characters_are_one_label() -> None:
    core = ManualCore()
    topic = core.topic("orders")
    names = ['a"b', "c\\d", "e\nf{}", "\\n", "Grüße"]
    for name in names:
        commit(core, name, (topic.key(0), 0))
    assert [labels["group"] for labels, _ in scraped(core)["duolog_group_lag_messages"]] == names
    assert escaped("\udc80") == "?"


def test_limits_leave_topics_and_groups_out_and_say_so() -> None:
    core = ManualCore()
    topics = [core.topic(f"topic-{number}", 4) for number in range(6)]
    for number in range(6):
        commit(core, f"group-{number}", *((topic.key(0), 0) for topic in topics))
    few = Scrape(topics_max=5, queues_max=12, groups_max=4)
    found = scraped(core, few)
    assert [labels["topic"] for labels, _ in found["kafka_topic_partitions"]] == ["topic-0", "topic-1", "topic-2"]
    assert {labels["group"] for labels, _ in found["duolog_group_lag_messages"]} == {f"group-{n}" for n in range(4)}
    assert found["duolog_scrape_omitted"] == [({"kind": "topics"}, 3), ({"kind": "groups"}, 2)]
    found = scraped(core, Scrape(group_bytes_max=15_000))
    assert found["duolog_scrape_omitted"][1] == ({"kind": "groups"}, 5)


@pytest.fixture(scope="module")
def many_queues() -> ManualCore:
    """A broker with 10,000 queues, and a group that has an offset in each."""
    core = ManualCore()
    for number in range(10):
        commit(core, "readers", *((queue.key, 0) for queue in core.topic(f"topic-{number}", 1_000).queues))
    return core


@pytest.mark.slow
def test_ten_thousand_queues_are_few_lines_at_a_time(many_queues: ManualCore) -> None:
    """A scrape writes a fixed number of lines for each queue, and at most LINES_IN_PART before the loop may run."""
    core = many_queues
    lines = [(part or b"").count(b"\n") for part in parts(core.http_context(), Scrape())]
    fixed = sum((part or b"").count(b"\n") for part in parts(ManualCore().http_context(), Scrape()))
    per_queue = 7 + 2  # The lines of kafka_topic_partition_* and kafka_consumergroup_* for one queue.
    assert sum(lines) - fixed <= (per_queue * 1_000 + 19) * 10
    assert max(lines) <= LINES_IN_PART
    slices = 0
    for each in core.http_context().groups.lags.of_queues("readers"):
        slices = 0 if each is None else slices + 1
        assert slices <= LINES_IN_PART


@pytest.mark.slow
def test_ten_thousand_queues_take_little_time(many_queues: ManualCore) -> None:
    """A scrape needs less than 200 ms, and no slice of it holds the loop for 20 ms.

    The times are processor times of this thread, and of each slice the least of SCRAPES counts: neither other processes
    nor Python's garbage collector lengthen it.
    """
    rounds = [_slices_s(many_queues) for _ in range(SCRAPES)]
    slices_s = [min(times) for times in zip(*rounds, strict=True)]
    assert len(slices_s) > 10
    assert max(slices_s) < 0.02
    assert sum(slices_s) < 0.2


def _slices_s(core: ManualCore) -> list[float]:
    """Return the processor time of each slice of a scrape, with the encoding of its lines."""
    slices, times_s = parts(core.http_context(), Scrape()), list[float]()
    while True:
        begun_s = time.thread_time()
        if next(slices, _END) is _END:
            return times_s
        times_s.append(time.thread_time() - begun_s)


_END: Final = object()


def test_each_metric_has_help_and_no_two_have_one_name() -> None:
    found: list[Metric] = list(families(ManualCore().http_context()))
    assert all(family.documentation.endswith(".") for family in found)
    assert len({family.name for family in found}) == len(found)


def test_the_port_answers_as_prometheus_expects() -> None:
    bench = HttpBench()
    bench.core.topic("orders")
    status, head, body = bench.send(REQUEST)
    assert (status, b"Content-Type: text/plain; version=" in head) == (200, True)
    assert b'kafka_topic_partitions{topic="orders"} 2\n' in body


def test_scrapes_beyond_the_memory_for_requests_are_refused() -> None:
    async def statuses() -> list[bytes]:
        core = ManualCore()
        port = HttpBench(core).port()
        await port.start()
        reader, late = HttpDialogue(core, port), HttpDialogue(core, port)
        reader.connection.hold(core.options.http.held_bytes_max - Scrape().memory_bytes_max + 1)
        late.send(REQUEST)
        refused = await late.answers()
        reader.connection.end()
        next_one = HttpDialogue(core, port)
        next_one.send(REQUEST)
        answered = await next_one.answers()
        await port.stop()
        return [refused.split(b" ")[1], answered.split(b" ")[1]]

    assert asyncio.run(statuses()) == [b"503", b"200"]


# -- Histograms


def test_values_that_are_added_together_count_as_if_added_one_by_one() -> None:
    together, singly = Histogram((1, 2, 5)), Histogram((1, 2, 5))
    for values in ([1.5, 1.6], [0, 1, 2, 5, 6], [], [9]):
        together.add_all(values)
        for value in values:
            singly.add(value)
    assert together.buckets() == singly.buckets() == [("1", 2), ("2", 5), ("5", 6), ("+Inf", 8)]
    assert together.total == singly.total == 26.1


def test_late_delivery_of_a_delayed_message_is_measured() -> None:
    bench = HttpBench()
    core = bench.core
    core.topic("orders")
    status, _ = bench.ask("POST", "/api/topics/orders/messages", {"value": "late", "delay_ms": 1_000, "queue": 0})
    assert status == 201
    core.clock.pass_ms(1_000)
    assert scraped(core)["duolog_timer_overdue_seconds"] == [({}, 0)]
    core.clock.pass_ms(300)
    assert scraped(core)["duolog_timer_overdue_seconds"] == [({}, 0.3)]
    assert bench.ask("GET", "/api/status")[1]["overdue_ms"] == 300
    bench.ask("POST", "/api/topics/orders/pause")
    assert scraped(core)["duolog_timer_overdue_seconds"] == [({}, 0)], "no delivery is expected"
    bench.ask("POST", "/api/topics/orders/resume")
    core.delays.run(core.clock.now_ms(), core.clock.mono_ms())
    assert scraped(core)["duolog_timer_overdue_seconds"] == [({}, 0)]
    found = {labels["le"]: value for labels, value in scraped(core)["duolog_timer_lateness_seconds_bucket"]}
    assert (found["0.2"], found["0.5"], found["+Inf"]) == (0, 1, 1)


def test_records_in_and_out_count_alike_in_each_protocol() -> None:
    broker = RocketMQBroker()
    topic, bench, client = broker.topic("orders", 1), HttpBench(broker), broker.connect()
    broker.publisher.publish_batch(topic, 0, batch([b"a", b"b", b"c"]), broker.clock.now_ms())
    client.send(body=b"d")
    bench.ask("POST", "/api/topics/orders/messages", {"messages": [{"value": "e"}, {"value": "f"}]})
    bench.ask("POST", "/api/timers", {"topic": "orders", "value": "g", "delay_ms": 60_000})
    records_in = {labels["wire"]: count for labels, count in scraped(broker)["duolog_records_in_total"]}
    assert records_in == {"kafka": 3, "rocketmq": 1, "http": 3}
    queue = topic.queues[0]
    assert now(broker.reader.read_for_kafka(queue, topic, 0, 1 << 20, queue.visible_end))
    client.pull(0)
    assert len(bench.ask("GET", "/api/topics/orders/messages")[1]["messages"]) == 6
    families_out = scraped(broker)
    records_out = {labels["wire"]: count for labels, count in families_out["duolog_records_out_total"]}
    assert records_out == {"kafka": 6, "rocketmq": 6, "http": 6}
    assert all(count > 0 for _, count in families_out["duolog_record_bytes_out_total"])
