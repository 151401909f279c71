"""Which dead letters were redriven: the fewest ranges for any offsets, within the room of a committed offset."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.bridge.config import GroupsOptions
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.retry import redriven
from duolog.bridge.rocketmq.retry.redriven import RedrivenLetters, redriven_of
from tests.unit.bridge.rocketmq.broker import RocketMQBroker

GROUP = "billing"


def stored(broker: RocketMQBroker, position: CommittedOffset) -> RedrivenLetters:
    """Commit a position, and read it again."""
    topic = broker.topic()
    broker.group_offsets.commit(GROUP, [position._replace(key=topic.key(0))], broker.clock.now_ms())
    broker.settle()
    return redriven_of(broker.rocketmq_context, GROUP, topic.queues[0])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=20), st.integers(0, 30))
def test_letters_are_those_before_the_position_and_those_that_were_added(
    added: list[tuple[int, int]], position: int
) -> None:
    letters = RedrivenLetters(position)
    expected = {*range(position)}
    for start, count in added:
        letters = letters.with_all(range(start, start + count))
        expected |= {*range(start, start + count)}
        assert {offset for offset in range(70) if offset in letters} == expected
        assert letters.unread(70) == 70 - len(expected)
        bounds = [letters.position, *(bound for each in letters.ranges for bound in (each.start, each.stop))]
        assert all(first < second for first, second in pairwise(bounds)), "with gaps between"


def test_letters_are_stored_with_the_committed_offset() -> None:
    letters = RedrivenLetters(12, (range(15, 18), range(20, 21)))
    position = letters.committed(7, GroupsOptions().metadata_bytes_max)
    assert position == CommittedOffset(7, 12, metadata="redriven 15-17 20-20")
    assert stored(RocketMQBroker(), position) == letters


@pytest.mark.parametrize(
    "metadata", ["", "redriven", "redriven 15", "redriven 15-17 x", "redriven 15-" + "9" * 19, "my own 15-17"]
)
def test_other_metadata_names_no_letters(metadata: str) -> None:
    assert stored(RocketMQBroker(), CommittedOffset(0, 12, metadata=metadata)) == RedrivenLetters(12)


@pytest.mark.parametrize("metadata", ["redriven 17-15 3-2", "redriven 1-13 13-12"])
def test_ranges_that_are_wrong_or_overlap_do_no_harm(metadata: str) -> None:
    assert stored(RocketMQBroker(), CommittedOffset(0, 14, metadata=metadata)) == RedrivenLetters(14)


def test_ranges_beyond_the_end_of_the_queue_count_for_no_letters() -> None:
    position = CommittedOffset(0, 12, metadata="redriven " + " ".join(f"{at}-" + "9" * 18 for at in (15, 17)))
    assert stored(RocketMQBroker(), position).unread(20) == 0


def test_ranges_beyond_the_room_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redriven, "RANGES_MAX", 3)
    letters = RedrivenLetters(0)
    for offset in (9, 7, 5, 3):
        letters = letters.with_all(range(offset, offset + 1))
    assert letters == RedrivenLetters(0, (range(3, 4), range(5, 6), range(7, 8)))
    assert letters.committed(7, 17) == CommittedOffset(7, 0, metadata="redriven 3-3 5-5")
    assert letters.committed(7, 0) == CommittedOffset(7, 0)
