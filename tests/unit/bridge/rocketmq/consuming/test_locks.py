"""Locks of queues: the owner of each, after random histories."""

from hypothesis import given
from hypothesis import strategies as st

from duolog.bridge.rocketmq.consuming.locks import CLIENT_LOCK_MS, LOCK_MS, Locks

QUEUES = [7 << 16 | queue_id for queue_id in range(3)]
STEPS = st.tuples(
    st.sampled_from(["lock", "unlock", "unlock_all", "left", "advance"]),
    st.sampled_from(["g", "h"]),
    st.sampled_from(["1", "2"]),
    st.sets(st.sampled_from(QUEUES)),
    st.integers(0, LOCK_MS),
)


@given(st.lists(STEPS, max_size=30))
def test_queue_belongs_to_who_locked_it_last_and_lately(
    history: list[tuple[str, str, str, set[int], int]],
) -> None:
    locks = Locks()
    model: dict[tuple[str, int], tuple[str, int]] = {}
    mono_ms = 0
    for what, group, client_id, queues, passes_ms in history:
        mono_ms += passes_ms
        if what == "lock":
            for queue in queues:
                owner, until = model.get((group, queue), (client_id, mono_ms))
                if owner == client_id or until <= mono_ms:
                    model[group, queue] = client_id, mono_ms + LOCK_MS
            mine = {queue for queue in queues if model[group, queue][0] == client_id}
            assert set(locks.lock(group, client_id, queues, mono_ms)) == mine
        elif what == "unlock":
            locks.unlock(group, client_id, queues)
            model = {
                place: held
                for place, held in model.items()
                if place[0] != group or place[1] not in queues or held[0] != client_id
            }
        elif what == "unlock_all":
            locks.unlock_all(group, client_id)
            model = {place: held for place, held in model.items() if (place[0], held[0]) != (group, client_id)}
        elif what == "left":
            locks.left(group, client_id, mono_ms)
            for place, (owner, until) in model.items():
                if (place[0], owner) == (group, client_id):
                    model[place] = owner, min(until, mono_ms + CLIENT_LOCK_MS)
        else:
            freed = {place[0] for place, (_, until) in model.items() if until <= mono_ms}
            assert set(locks.advance(mono_ms)) == freed
            model = {place: held for place, held in model.items() if held[1] > mono_ms}
        assert len(locks) == len(model)
        for name in ("g", "h"):
            live = any(place[0] == name and until > mono_ms for place, (_, until) in model.items())
            assert locks.is_any_held(name, mono_ms) is live


def test_no_more_than_so_many_locks_are_kept() -> None:
    locks = Locks(locks_max=2)
    assert locks.lock("g", "1", QUEUES, 0) == QUEUES[:2]
    locks.unlock("g", "1", QUEUES[:1])
    assert locks.lock("g", "1", QUEUES[2:], 0) == QUEUES[2:]
