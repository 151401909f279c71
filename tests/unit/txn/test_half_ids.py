"""Ids of half messages: each belongs to one message while it is stored, and snapshots restore them."""

from hypothesis import given
from hypothesis import strategies as st

from duolog.txn.half_ids import HalfIds

STEPS = st.lists(st.tuples(st.sampled_from(["prepare", "decide"]), st.integers(0, 12)), max_size=60)


@given(steps=STEPS)
def test_id_is_known_while_open_and_for_some_time_after(steps: list[tuple[str, int]]) -> None:
    ids, open_ids, decided = HalfIds(decided_kept=3), {}, []
    for offset, (step, number) in enumerate(steps):
        topic, id = f"t{number % 2}", f"id{number}"
        if step == "prepare" and ids.offset_of(topic, id) is None:
            ids.prepared(offset, topic, id)
            open_ids[offset] = (topic, id)
        elif step == "decide" and open_ids:
            chosen = sorted(open_ids)[number % len(open_ids)]
            ids.decided(chosen)
            decided = [*decided, (chosen, open_ids.pop(chosen))][-3:]
    for again in (ids, restored(ids)):
        assert len(again) == len(open_ids)
        for at, name in [*open_ids.items(), *decided]:
            assert again.offset_of(*name) == at
            assert again.id_of(at) == name
        assert len(again._offsets) == len(open_ids) + len(decided)


def restored(ids: HalfIds) -> HalfIds:
    again = HalfIds(decided_kept=3)
    for rows in ids.snapshot(2):
        again.restore(rows)
    return again
