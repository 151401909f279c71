"""Proves that a standby has the owner's whole state, live, and goes on with it after a takeover."""

import asyncio

from duolog.bridge.security.quotas.entity import DELAYED, Entity, QuotaClient
from duolog.delay.quota_entities import QuotaEntity
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.entry import SHARED
from tests.kit.clock import ManualClock
from tests.kit.loop import run
from tests.kit.object_store import SimulatedBucket
from tests.kit.shared_core import SharedCore

DELAY_MS = 3_600_000


def bodies(core: SharedCore, name: str) -> list[bytes]:
    topic = core.topics.get(name)
    assert topic is not None
    queue = topic.queues[0]
    found = core.store.reader.read(queue, queue.start_offset, max_bytes=1 << 20, until=queue.visible_end)
    assert isinstance(found, list)
    return [bytes(each.frame) for each in found]


def send(core: SharedCore, name: str, body: bytes, properties: bytes = b"", client: QuotaClient | None = None) -> None:
    topic = core.topics.get(name)
    assert topic is not None
    now_ms = core.clock.now_ms()
    message = Message("", body, properties, born_ms=now_ms)
    core.publisher.publish_messages(topic, 0, [message], now_ms, client=client)
    core.settle()


def state(core: SharedCore) -> list[bytes]:
    snapshot = core.state_log.snapshot()
    try:
        return sorted(snapshot)
    finally:
        snapshot.close()


def test_standby_has_the_state_and_serves_after_the_owner_has_died() -> None:
    clock, bucket = ManualClock(), SimulatedBucket(5)

    async def main() -> None:

        first = SharedCore(clock, bucket, "a")
        await first.join()
        await first.own()
        first.topics.create("orders", 1, {"flush.mode": "shared"}, clock.now_ms())
        first.settle()
        second = SharedCore(clock, bucket, "b")
        await second.join()
        following = asyncio.create_task(second.own())
        for number in range(50):
            send(first, "orders", b"%d" % number)
            await asyncio.sleep(0.1)
        due_ms = clock.now_ms() + DELAY_MS
        quotas, entity = first.security.quotas.stored, Entity("alice")
        quotas.set(entity, quotas.changed(entity, {DELAYED: 2.0}), clock.now_ms())
        alice = QuotaClient("rocketmq", "alice")
        send(first, "orders", b"later", f"TIMER_DELIVER_MS\x01{due_ms}\x02".encode(), alice)
        queue = first.topics.get("orders").queues[0]  # type: ignore[union-attr]
        assert queue.level == SHARED
        assert queue.visible_end < 51, "a shared queue shows what the store has"
        await asyncio.sleep(2)
        assert second.store.next_position == first.store.next_position
        assert state(second) == state(first)
        sent, epoch = bodies(first, "orders"), first.topics.get("orders").leader_epoch(0)  # type: ignore[union-attr]
        assert len(sent) == 50
        first.kill()
        await asyncio.wait_for(following, 5)
        assert bodies(second, "orders") == sent
        assert second.topics.get("orders").leader_epoch(0) == second.store.epoch > epoch  # type: ignore[union-attr]
        entity, sums = QuotaEntity("alice", None), second.delays.timers.quota_entities
        assert sums.count_of(entity) == 1
        clock.pass_ms(DELAY_MS)
        for _ in range(20):
            second.delays.run(clock.now_ms(), clock.mono_ms())
            second.settle()
            await asyncio.sleep(0.05)
        assert len(bodies(second, "orders")) == 51
        assert sums.count_of(entity) == 0
        second.kill()

    run(main(), clock)
