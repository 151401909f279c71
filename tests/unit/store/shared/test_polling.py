"""Proves which slots a follower asks for after it went on elsewhere, with a store that answers at once."""

from duolog.store.shared.polling import Polling
from duolog.store.shared.wal.wal_object import HEADER_SIZE


def test_follower_that_goes_on_behind_segment_objects_reads_all_slots_of_an_idle_owner_at_once() -> None:
    # It asked for one slot in each beat, as the owner writes them, and so a takeover took a second more for each slot.
    polling = Polling(3_000, 5)
    for sequence in polling.due(1_000):
        polling.missed(sequence, 1_000, 1_000)
    polling.restart(10)
    asked = []
    for mono_ms in range(1_050, 1_100):
        for sequence in polling.due(mono_ms):
            asked.append(sequence)
            if sequence < 40:
                polling.found(sequence, HEADER_SIZE, mono_ms, mono_ms)
            else:
                polling.missed(sequence, mono_ms, mono_ms)
    assert set(range(10, 41)) <= set(asked)
    assert polling.is_at_end
