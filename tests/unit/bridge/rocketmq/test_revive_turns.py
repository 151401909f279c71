"""Reviving popped messages never makes a turn of the loop longer than a slice, however large the messages are.

The clock passes with each message whose copy is made, as it does where messages are large or lie in large batches.
"""

from duolog.bridge.net.connection import TURN_MS
from duolog.bridge.rocketmq.pop.revive import CHECKPOINTS_AT_ONCE
from tests.kit.clock import ManualClock
from tests.unit.bridge.rocketmq.broker import RocketMQBroker
from tests.unit.bridge.rocketmq.popping import INVISIBLE_MS, pop

COUNT = 3 * CHECKPOINTS_AT_ONCE


class WorkingClock(ManualClock):
    """Passes time whenever the monotonic clock is read; `step_ms` says by how much."""

    step_ms = 0

    def mono_ms(self) -> int:
        self.pass_ms(self.step_ms)
        return super().mono_ms()


def turns_until_given_back(step_ms: int) -> tuple[int, int]:
    """Give in how many turns all came back, and the most checkpoints that one of them took."""
    broker = RocketMQBroker(clock=(clock := WorkingClock()))
    topic, client = broker.topic(), broker.connect()
    broker.publish(topic, *(b"%d" % number for number in range(COUNT)))
    for _ in range(COUNT):
        pop(client, maxMsgNums=1)
    assert len(broker.rocketmq_context.pop.checkpoints) == COUNT
    broker.clock.pass_ms(INVISIBLE_MS + 1000)
    now_ms, turns, most = broker.clock.now_ms(), 0, 0
    clock.step_ms = step_ms
    while before := len(broker.rocketmq_context.pop.checkpoints):
        broker.reviver.run(now_ms)
        turns, most = turns + 1, max(most, before - len(broker.rocketmq_context.pop.checkpoints))
        assert turns < 10 * COUNT
    return turns, most


def test_small_ones_are_given_back_many_in_a_turn() -> None:
    assert turns_until_given_back(step_ms=0)[1] == CHECKPOINTS_AT_ONCE


def test_turn_ends_once_its_time_is_over() -> None:
    turns, most = turns_until_given_back(step_ms=TURN_MS)
    assert most <= 2
    assert turns >= COUNT // 2
