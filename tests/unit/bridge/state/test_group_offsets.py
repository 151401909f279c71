"""Proves the table of group positions: what is committed, collected, expired, bounded; by time that is an argument."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from duolog.bridge.config import GroupsOptions, Options
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.state.group_offsets import (
    FREED_AT_ONCE,
    GroupOffset,
    GroupOffsets,
    MetadataTooLarge,
    TooManyGroupOffsets,
)
from duolog.store.errors import DiskFull
from duolog.store.index.queue import QUEUE_ID_BITS
from tests.kit.memory_log import MemoryLog
from tests.unit.bridge.replayed_state import NOW, State, new_state, open_state

DAY = 24 * 3600 * 1000
KEY = 1 << 16  # a queue of the first system topic
ONE = [CommittedOffset(KEY, 5, 0, "note")]


def opened(**groups: int) -> tuple[State, MemoryLog]:
    log = MemoryLog()
    return open_state(log, new_state(Options(groups=GroupsOptions(**groups)))), log


def test_committed_position_is_there_at_once() -> None:
    state, log = opened()
    promise = state.group_offsets.commit("g", ONE, NOW)
    assert promise.end == log.end
    assert state.group_offsets.fetch("g", KEY) == GroupOffset(5, 0, "note", NOW)
    assert state.group_offsets.fetch("g", KEY + 1) is None
    assert state.group_offsets.fetch("other", KEY) is None


def test_one_way_commits_of_a_second_become_one_record_for_each_group() -> None:
    state, log = opened()
    positions = state.group_offsets
    for group in ("a", "b"):
        positions.commit(group, ONE, NOW)
    before = log.units, len(log.kept)
    for offset in range(100):
        for group in ("a", "b"):
            positions.commit_later(group, [CommittedOffset(KEY, offset)], offset, NOW)
    assert (log.units, len(log.kept)) == before
    assert positions.next_deadline_mono_ms() == 1000
    positions.advance(999, NOW)
    assert positions.fetch("a", KEY) == GroupOffset(5, 0, "note", NOW)
    positions.advance(1000, NOW + 1)
    assert (log.units, len(log.kept)) == (before[0] + 1, before[1] + 2)
    assert positions.fetch("a", KEY) == positions.fetch("b", KEY) == GroupOffset(99, commit_ms=NOW + 1)
    assert positions.next_deadline_mono_ms() is None


def test_position_that_was_collected_and_committed_is_reported() -> None:
    state, _ = opened()
    state.group_offsets.commit("g", ONE, NOW)
    state.group_offsets.commit_later("g", [CommittedOffset(KEY, 6)], 0, NOW)
    state.group_offsets.commit_collected("g", NOW)
    assert state.group_offsets.all_of("g")[KEY].offset == 6


def test_answered_commit_is_not_overwritten_by_an_earlier_one_way_one() -> None:
    state, _ = opened()
    state.group_offsets.commit("g", ONE, NOW)
    state.group_offsets.commit_later("g", [CommittedOffset(KEY, 6), CommittedOffset(KEY + 1, 1)], 0, NOW)
    state.group_offsets.commit("g", [CommittedOffset(KEY, 7)], NOW)
    state.group_offsets.commit_all_collected(NOW)
    assert {key: position.offset for key, position in state.group_offsets.all_of("g").items()} == {KEY: 7, KEY + 1: 1}


def test_refused_append_keeps_what_was_collected() -> None:
    state, log = opened()
    state.group_offsets.commit("g", ONE, NOW)
    state.group_offsets.commit_later("g", [CommittedOffset(KEY, 6)], 0, NOW)

    def refuse(*_: object) -> None:
        raise OSError

    log.append, append = refuse, log.append  # type: ignore[method-assign, assignment]
    with pytest.raises(OSError):
        state.group_offsets.advance(1000, NOW)
    log.append = append  # type: ignore[method-assign]
    assert state.group_offsets.next_deadline_mono_ms() == 2000
    state.group_offsets.advance(2000, NOW)
    assert state.group_offsets.all_of("g")[KEY].offset == 6


def test_positions_go_with_their_topic() -> None:
    state, _ = opened()
    topic, _ = state.topics.create("orders", 2, {}, NOW)
    state.group_offsets.commit("g", [*ONE, CommittedOffset(topic.key(0), 1), CommittedOffset(topic.key(1), 2)], NOW)
    state.group_offsets.commit_later("g", [CommittedOffset(topic.key(1), 9)], 0, NOW)
    state.topics.delete(topic, NOW)
    state.group_offsets.commit_all_collected(NOW)
    list(state.group_offsets.sweep(lambda key: key >> QUEUE_ID_BITS not in state.topics))
    assert set(state.group_offsets.all_of("g")) == {KEY}
    assert state.group_offsets._count == 1


def test_groups_and_positions_can_be_deleted() -> None:
    state, _ = opened()
    state.group_offsets.commit("g", [*ONE, CommittedOffset(KEY + 1, 1)], NOW)
    state.group_offsets.delete("g", [KEY, KEY + 2], NOW)
    assert set(state.group_offsets.all_of("g")) == {KEY + 1}
    state.group_offsets.delete_group("g", NOW)
    assert "g" not in state.group_offsets
    assert state.group_offsets._count == 0


def test_silent_groups_expire_and_living_ones_do_not() -> None:
    state, log = opened(positions_retention_ms=7 * DAY)
    for group in ("silent", "alive"):
        state.group_offsets.commit(group, ONE, NOW)
    for day in range(1, 8):
        list(state.group_offsets.expire(NOW + day * DAY - 1, lambda group: group == "alive"))
        assert "silent" in state.group_offsets
    list(state.group_offsets.expire(NOW + 7 * DAY, lambda group: group == "alive"))
    assert [*state.group_offsets.groups()] == ["alive"]
    assert state.group_offsets.fetch("alive", KEY) == GroupOffset(5, 0, "note", NOW)
    # That it was alive is in the log: a restart does not make it older.
    later = open_state(log)
    list(later.group_offsets.expire(NOW + 13 * DAY, lambda group: False))
    assert "alive" in later.group_offsets
    list(later.group_offsets.expire(NOW + 14 * DAY, lambda group: False))
    assert "alive" not in later.group_offsets


def test_table_is_bounded() -> None:
    state, _ = opened(count_max=2, metadata_bytes_max=4, positions_max=3)
    positions = state.group_offsets
    positions.commit("a", ONE, NOW)
    with pytest.raises(MetadataTooLarge):
        positions.commit("a", [CommittedOffset(KEY, 1, 0, "12345")], NOW)
    positions.commit_later("b", ONE, 0, NOW)
    for commit in (
        lambda: positions.commit("c", ONE, NOW),
        lambda: positions.commit_later("c", ONE, 0, NOW),
    ):
        with pytest.raises(TooManyGroupOffsets):
            commit()
    with pytest.raises(TooManyGroupOffsets):
        positions.commit("a", [CommittedOffset(KEY + 1, 1), CommittedOffset(KEY + 2, 1)], NOW)


def test_full_table_takes_positions_that_it_has() -> None:
    state, _ = opened(positions_max=4)
    positions = state.group_offsets
    three = [CommittedOffset(KEY + queue, 1) for queue in range(3)]
    positions.commit("a", three, NOW)
    positions.commit_later("a", [CommittedOffset(KEY + 3, 1)], 0, NOW)  # It has its place before it is state.
    for again in (three, [*three, *three], [CommittedOffset(KEY + 3, 2)]):
        positions.commit("a", again, NOW)
        positions.commit_later("a", again, 0, NOW)
    for new in ([CommittedOffset(KEY + 4, 1)], [*three, CommittedOffset(KEY + 4, 1)]):
        with pytest.raises(TooManyGroupOffsets):
            positions.commit("a", new, NOW)
        with pytest.raises(TooManyGroupOffsets):
            positions.commit_later("a", new, 0, NOW)
    positions.commit_all_collected(NOW)
    assert (positions._count, positions._collected_new) == (4, 0)


def test_full_table_takes_text_that_is_shorter_than_before() -> None:
    positions = opened(positions_text_bytes_max=8)[0].group_offsets
    positions.commit("a", [CommittedOffset(KEY, 1, 0, "\u20ac\u20ac")], NOW)
    for shorter in ("\u20ac1", "12345678", "1"):
        positions.commit("a", [CommittedOffset(KEY, 1, 0, shorter)], NOW)
    with pytest.raises(TooManyGroupOffsets):
        positions.commit("a", [CommittedOffset(KEY, 1, 0, "123456789")], NOW)


def test_metadata_of_all_positions_is_bounded_and_given_back() -> None:
    positions = opened(positions_text_bytes_max=4)[0].group_offsets
    for ending in (
        lambda: positions.delete("a", [KEY], NOW),
        lambda: positions.delete_group("a", NOW),
        lambda: positions.commit("a", [CommittedOffset(KEY, 3)], NOW),
    ):
        positions.commit("a", [CommittedOffset(KEY, 1, 0, "12")], NOW)
        positions.commit("a", [CommittedOffset(KEY, 2, 0, "12")], NOW)
        with pytest.raises(TooManyGroupOffsets):
            positions.commit("b", [CommittedOffset(KEY, 1, 0, "123")], NOW)
        ending()
        positions.commit("b", [CommittedOffset(KEY, 1, 0, "1234")], NOW)
        positions.delete_group("b", NOW)


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda positions: positions.commit_collected("g", NOW), id="commit_collected"),
        pytest.param(lambda positions: positions.commit_all_collected(NOW), id="commit_all_collected"),
        pytest.param(lambda positions: positions.commit("g", [CommittedOffset(KEY, 9)], NOW), id="commit"),
        pytest.param(lambda positions: positions.delete("g", [KEY], NOW), id="delete"),
        pytest.param(lambda positions: positions.reported("g", NOW), id="reported"),
    ],
)
def test_what_the_log_refuses_loses_nothing_that_was_collected(ask: Callable[[GroupOffsets], object]) -> None:
    state, log = opened()
    positions = state.group_offsets
    positions.commit("g", ONE, NOW)
    positions.commit_later("g", [CommittedOffset(KEY, 6), CommittedOffset(KEY + 1, 1)], 0, NOW)

    def refuse(*_: object) -> None:
        raise DiskFull("no room")

    log.append, append = refuse, log.append  # type: ignore[method-assign, assignment]
    with suppress(DiskFull):
        ask(positions)
    assert {key: position.offset for key, position in positions.reported("g", NOW).items()} == {KEY: 6, KEY + 1: 1}
    assert positions.fetch("g", KEY).offset == 5  # type: ignore[union-attr]
    log.append = append  # type: ignore[method-assign]
    positions.commit_all_collected(NOW)
    assert {key: position.offset for key, position in positions.all_of("g").items()} == {KEY: 6, KEY + 1: 1}


def test_many_collected_positions_become_state_in_slices() -> None:
    state, log = opened()
    positions = state.group_offsets
    groups = [f"g{number}" for number in range(10)]
    for group in groups:
        positions.commit(group, ONE, NOW)
        positions.commit_later(group, [CommittedOffset(KEY + queue, 1) for queue in range(1000)], 0, NOW)
    units, turns = log.units, 0
    while (due_ms := positions.next_deadline_mono_ms()) is not None:
        assert due_ms <= 1000, "all are due at once"
        positions.advance(1000, NOW)
        turns += 1
    assert turns == log.units - units == 3
    assert all(len(positions.all_of(group)) == 1000 for group in groups)


def test_a_group_with_many_positions_goes_at_once_and_its_memory_in_slices() -> None:
    state, _ = opened()
    positions, count = state.group_offsets, 3 * FREED_AT_ONCE
    positions.commit("g", [CommittedOffset(KEY + number, 5, 0, "é") for number in range(count)], NOW)
    group = positions.all_of("g")
    positions.delete_group("g", NOW)
    assert ("g" in positions, positions._count, positions._text_bytes) == (False, 0, 0)
    for slices in range(3):
        assert len(group) == count - slices * FREED_AT_ONCE
        assert positions.next_deadline_mono_ms() == 0
        positions.advance(0, NOW)
    assert (len(group), positions.next_deadline_mono_ms()) == (0, None)
