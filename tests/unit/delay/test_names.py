"""Proves the index by sender's key against a dict of lists, and that what is past goes in time."""

from random import Random

from duolog.delay.names import Names, name_hash
from duolog.delay.rows import TimerId

PAST_MAX = 4096 * 3  # three in each part
EDGE = int.from_bytes(b"\0" * 7 + b"\1", "big")


def test_a_look_finds_all_that_is_pending_under_a_key_in_order() -> None:
    random = Random(3)
    pending: set[TimerId] = set()
    model: dict[int, list[TimerId]] = {}
    names = Names(pending.__contains__, PAST_MAX)
    hashes = [name_hash(1, b"%d" % number) for number in range(300)] + [0, EDGE, (1 << 64) - 1]
    for address in range(5_000):
        hashed, timer_id = random.choice(hashes), (random.choice([0, EDGE, 1_700_000_000_000]), address)
        names.add(hashed, timer_id)
        model.setdefault(hashed, []).append(timer_id)
        pending.add(timer_id)
        if random.random() < 0.7:
            pending.discard(random.choice(model[random.choice(list(model))]))
    again = Names(pending.__contains__, PAST_MAX)
    for rows in names.snapshot():
        again.restore(rows)
    for index in (names, again):
        for hashed in hashes:
            expected = [timer_id for timer_id in model.get(hashed, []) if timer_id in pending]
            assert [timer_id for timer_id in index.find(hashed) if timer_id in pending] == expected


def test_of_what_is_past_only_the_newest_stay() -> None:
    names = Names(lambda timer_id: False, PAST_MAX)
    for address in range(1_000):
        names.add(7, (1, address))
    found = names.find(7)
    assert len(found) < 70
    assert found[-1] == (1, 999)


def test_the_hash_is_the_same_forever() -> None:
    assert name_hash(1, b"order-17") == 5994470272363340141
