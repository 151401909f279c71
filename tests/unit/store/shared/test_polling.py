"""Proves which slots a follower asks for after it went on elsewhere, with a store that answers at once."""

import random

import pytest

from duolog.store.shared.polling import Polling
from duolog.store.shared.wal.wal_object import HEADER_SIZE


def test_follower_that_goes_on_after_segment_objects_reads_all_slots_of_an_idle_owner_at_once() -> None:
    # The follower once asked for one slot in each heartbeat interval, so a takeover took a second more for each slot.
    polling = Polling(3_000, 5)
    for sequence in polling.due(1_000):
        polling.missed(sequence, 1_000, 1_000)
    polling.restart(10)
    asked = []
    for mono_ms in range(1_050, 1_200):
        for sequence in polling.due(mono_ms):
            asked.append(sequence)
            if sequence < 40:
                polling.found(sequence, HEADER_SIZE, mono_ms, mono_ms)
            else:
                polling.missed(sequence, mono_ms, mono_ms)
    assert set(range(10, 41)) <= set(asked)
    assert polling.is_at_end


def test_an_empty_slot_ends_the_log_only_if_it_was_asked_for_after_the_newest_slot_that_was_found() -> None:
    # While the store is slow, all slots of a round trip are asked for at once, and the next answers come a round trip
    # later. A standby that fenced before they came fenced owners that were alive, and fell behind by it.
    polling = Polling(3_000, 5)
    polling.found(5, 2 * HEADER_SIZE, 0, 1_000)
    asked = polling.due(1_000)
    assert len(asked) > 1
    for sequence in asked[:-1]:
        polling.found(sequence, HEADER_SIZE, 1_000, 3_000)
    end = asked[-1]
    polling.missed(end, 1_000, 3_000)
    assert not polling.is_at_end
    assert end in polling.due(3_000)
    polling.missed(end, 3_000, 5_000)
    assert polling.is_at_end


@pytest.mark.parametrize("lateness_ms", [0, 4, 8])
def test_standby_of_an_idle_owner_needs_few_more_requests_than_the_owner_also_if_its_timers_are_late(
    lateness_ms: int,
) -> None:
    # Each late request once delayed all later ones. So no slot was empty for 25 heartbeats, and the standby concluded
    # that the owner writes more slots, and asked for missing ones: 4,400 requests an hour, where 4,000 are allowed.
    latency_ms, hour_ms = 50, 3_600_000
    late_ms = random.Random(1)
    polling, mono_ms, requests = Polling(3_000, 1), 1_000, 0
    while mono_ms < hour_ms:
        for sequence in polling.due(mono_ms):
            requests += 1
            answered_ms = mono_ms + latency_ms
            if sequence <= answered_ms // 1_000:  # An owner writes slot n in the second n.
                polling.found(sequence, HEADER_SIZE, mono_ms, answered_ms)
            else:
                polling.missed(sequence, mono_ms, answered_ms)
        due_ms = polling.next_ms()
        assert due_ms is not None
        mono_ms = max(due_ms, mono_ms + latency_ms) + late_ms.randint(0, lateness_ms)
    assert requests <= 3_800


@pytest.mark.parametrize("seed", range(5))
def test_the_last_slot_of_an_owner_is_found_within_a_heartbeat_interval_of_a_slow_store(seed: int) -> None:
    # A takeover counts from the moment at which the last slot was found. That was up to a second after it was written.
    latency_ms, chance = 50, random.Random(seed)
    written: list[tuple[int, int]] = []  # The time and the size of each slot.
    judged: set[int] = (
        set()
    )  # The last one of the slots with units that follow each other, and the heartbeats after it.
    for _ in range(40):
        at_ms = written[-1][0] if written else 0
        for _ in range(chance.randint(12, 20)):  # More than a second, after which an idle follower asks again.
            at_ms += chance.randint(100, 250)
            written.append((at_ms, 2 * HEADER_SIZE))
        judged.add(len(written) - 1)
        for _ in range(chance.randint(1, 8)):
            at_ms += 1_000
            judged.add(len(written))
            written.append((at_ms, HEADER_SIZE))
    polling, mono_ms, found_ms = Polling(3_000, 0), 0, dict[int, int]()
    while len(found_ms) < len(written):
        for sequence in polling.due(mono_ms):
            answered_ms = mono_ms + latency_ms
            if sequence < len(written) and written[sequence][0] <= mono_ms:
                polling.found(sequence, written[sequence][1], mono_ms, answered_ms)
                found_ms[sequence] = answered_ms
            else:
                polling.missed(sequence, mono_ms, answered_ms)
        due_ms = polling.next_ms()
        assert due_ms is not None
        mono_ms = max(due_ms, mono_ms + latency_ms)
    assert max(found_ms[each] - written[each][0] for each in judged) <= 250 + latency_ms
