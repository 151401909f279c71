"""Leases hold the log from the lowest position of those that last; they end by being released, or by time."""

from __future__ import annotations

import pytest

from bridge.leases import LEASES_MAX, Leases, TooManyLeases
from store.format import POSITION_MAX


class Log:
    held_from = POSITION_MAX


def test_the_lowest_position_is_held_until_its_lease_ends() -> None:
    log = Log()
    leases = Leases(log)
    assert leases.next_deadline_ms() is None
    high = leases.take(500, 1000, mono_ms=0)
    low = leases.take(100, 300, mono_ms=0)
    assert (log.held_from, leases.next_deadline_ms()) == (100, 300)
    assert leases.renew(low, mono_ms=200)
    leases.expire(mono_ms=300)
    assert log.held_from == 100, "it was renewed"
    leases.expire(mono_ms=500)
    assert (log.held_from, leases.renew(low, mono_ms=500)) == (500, False)
    assert (leases.release(high), leases.release(high)) == (True, False)
    assert (log.held_from, len(leases)) == (POSITION_MAX, 0)


def test_the_table_is_bounded() -> None:
    leases = Leases(Log())
    for _ in range(LEASES_MAX):
        leases.take(0, 1000, mono_ms=0)
    with pytest.raises(TooManyLeases, match="the next ends within 900 ms"):
        leases.take(0, 1000, mono_ms=100)
    leases.expire(1000)
    assert leases.take(0, 1000, mono_ms=1000) == LEASES_MAX + 1
