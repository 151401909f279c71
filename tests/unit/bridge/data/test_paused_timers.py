"""Pending messages of a paused topic take neither memory nor segments of the log, and are delivered in order later.

Messages are sent while their topic is paused, before and after others are due; the topic is resumed at any moment of
a flush or a read of sorted tables, by a broker that may have been killed before.
"""

from random import Random

import pytest

from tests.kit.rows import first_in_unit
from tests.unit.bridge.batches import batch
from tests.unit.bridge.data.test_far_timers import NEAR_MS, Bench

IN_BATCH = 20
COUNT = 60 * IN_BATCH


def parked_while_paused(bench: Bench) -> None:
    """Send near and far messages to a paused topic, until all are due; values have the expected order."""
    topic, rng = bench.core.topic("orders", 1), Random(4)
    bench.call("_pause", match="orders")
    for number in range(0, COUNT, IN_BATCH):
        due_ms = bench.now_ms() + rng.randrange(1, rng.choice((2, 12)) * NEAR_MS)
        values = [b"%d %d" % (due_ms, number + each) for each in range(IN_BATCH)]
        one = batch(values, headers=[("TIMER_DELIVER_MS", b"%d" % due_ms)])
        bench.core.publisher.publish_batch(topic, 0, one, bench.now_ms())
        bench.core.clock.pass_ms(NEAR_MS // 10)
        bench.turn()
    bench.core.clock.pass_ms(20 * NEAR_MS)
    bench.turn_until_idle()


def in_memory(bench: Bench) -> int:
    pending = bench.core.delays.timers.pending
    return len(pending.memtable) + len(pending.prefetch)


def in_order(bench: Bench) -> bool:
    places = [tuple(map(int, body.split())) for body in bench.bodies("orders")]
    return places == sorted(places)


@pytest.mark.slow
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_is_due_of_a_paused_topic_takes_no_memory_and_lets_segments_go(is_restarted: bool) -> None:
    bench = Bench()
    parked_while_paused(bench)
    bench.core.topic("refunds", 1)
    bench = bench.restarted() if is_restarted else bench
    bench.turn_until_idle()
    delays = bench.core.delays
    assert (in_memory(bench), len(delays.timers), bench.tree.pending.prefetch.bytes) == (0, COUNT, 0)
    wheel = bench.core.topics.by_rocketmq_name("rmq_sys_wheel_timer")
    assert wheel is not None
    assert [delays.first_kept(queue) for queue in wheel.queues] == [None] * len(wheel.queues)
    bench.call("_add", {"topic": "refunds", "value": "other topics go on", "delay_ms": 1})
    bench.core.clock.pass_ms(NEAR_MS)
    bench.turn_until_idle()
    assert bench.bodies("refunds") == [b"other topics go on"]
    assert not bench.bodies("orders")
    assert bench.call("_count", topic="orders") == {"count": COUNT}
    bench.call("_resume", match="orders")
    while len(delays.timers):
        bench.turn(NEAR_MS // 50)
        assert in_order(bench)
    assert (bench.core.topic("orders").queues[0].visible_end, len(bench.bodies("orders"))) == (COUNT, COUNT)
    bench.turn_until_idle()
    bench.turn(20 * NEAR_MS)
    bench.turn_until_idle()
    assert len(bench.tree.context.tables.manifest) == 0


@pytest.mark.slow
@pytest.mark.parametrize("turns", first_in_unit([0, 4, 15, 2, 6, 8, 10, 30, 60], 3))
@pytest.mark.parametrize(("load_rows", "own_max"), [(100, 32), (100, 0), (4_096, 32)])
def test_topic_that_is_resumed_and_paused_at_any_moment_gets_all_in_order(
    monkeypatch: pytest.MonkeyPatch, turns: int, load_rows: int, own_max: int
) -> None:
    """Messages that are sent meanwhile are due later than all others, and are delivered after them."""
    # With 0 the topic uses the shared cursor, which goes back.
    monkeypatch.setattr("duolog.delay.tree.cursors.OWN_MAX", own_max)
    monkeypatch.setattr("duolog.delay.tree.cursors.READ_ROWS", load_rows)
    # With these limits the tombstone job has written half of the deletions.
    for name in ("duolog.delay.tree.read_job.DELETIONS_MAX", "duolog.delay.tree.tombstone_job.TOMBSTONES_MIN"):
        monkeypatch.setattr(name, 100)
    bench = Bench()
    parked_while_paused(bench)
    topic = bench.core.topic("orders", 1)
    number = COUNT
    while len(bench.core.delays.timers):
        for verb in ("_pause", "_resume"):
            bench.call(verb, match="orders")
            for _ in range(turns):
                bench.turn(NEAR_MS // 20)
        if number < 2 * COUNT:
            due_ms = bench.now_ms()
            one = batch([b"%d %d" % (due_ms, number)], headers=[("TIMER_DELIVER_MS", b"%d" % due_ms)])
            bench.core.publisher.publish_batch(topic, 0, one, bench.now_ms() - 1)
            number += 1
        bench.core.clock.pass_ms(10)
        bench.turn(NEAR_MS // 20)
        assert in_order(bench)
    assert len(bench.bodies("orders")) == number


def test_resumed_topic_is_loaded_no_faster_than_it_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog.delay.tree.cursors.READ_ROWS", 64)
    monkeypatch.setattr("duolog.bridge.data.delayed.deliveries.DELIVERED_IN_SLICE", 16)
    monkeypatch.setattr("duolog.bridge.data.delayed.deliveries.SHARE_OF_TOPIC_MIN", 16)
    bench = Bench()
    parked_while_paused(bench)
    bench.call("_resume", match="orders")
    most = 0
    while len(bench.core.delays.timers):
        bench.turn(NEAR_MS // 20)
        most = max(most, in_memory(bench))
    assert most <= 2 * 64
