"""Leases hold the log from the lowest position of those that last; they end by being released, by time, or by bytes."""

from __future__ import annotations

import pytest

from duolog.bridge.config import LeasesOptions
from duolog.bridge.state.leases import (
    CHECK_MS,
    ReaderLease,
    ReaderLeases,
    TooManyLeases,
)
from duolog.store.log.format import POSITION_MAX

BYTES = 1000


class Log:
    """BYTES bytes, all of them dead."""

    held_from = POSITION_MAX

    @property
    def held_bytes(self) -> int:
        return max(0, BYTES - self.held_from)


def take(
    leases: ReaderLeases, held_from: int, lease_ms: int, mono_ms: int = 0, address: str = "192.0.2.1"
) -> ReaderLease:
    lease = leases.take([], address, lease_ms, mono_ms)
    leases.narrow(lease, held_from)
    return lease


def test_the_lowest_position_is_held_until_its_lease_ends() -> None:
    log = Log()
    leases = ReaderLeases(log, LeasesOptions())
    assert leases.next_deadline_ms() is None
    high, low = take(leases, 500, 1000), take(leases, 100, 300)
    leases.expire(mono_ms=0)
    assert (log.held_from, leases.next_deadline_ms()) == (100, 300)
    low.renew(mono_ms=200)
    leases.expire(mono_ms=300)
    assert log.held_from == 100, "it was renewed"
    leases.expire(mono_ms=500)
    assert (log.held_from, leases.get(low.id), leases.get(high.id)) == (500, None, high)
    leases.release(high)
    leases.release(high)
    assert (log.held_from, len(leases), leases.next_deadline_ms()) == (POSITION_MAX, 0, None)


def test_whole_log_is_held_until_it_is_known_what_is_read() -> None:
    log = Log()
    ReaderLeases(log, LeasesOptions()).take([], "", 1000, 0)
    assert log.held_from == 0


def test_ids_cannot_be_guessed() -> None:
    leases = ReaderLeases(Log(), LeasesOptions())
    ids = {take(leases, 0, 1000).id for _ in range(10)}
    assert len(ids) == 10
    assert all(len(each) >= 24 for each in ids)


def test_renewals_do_not_hold_for_ever() -> None:
    leases = ReaderLeases(Log(), LeasesOptions(hold_ms_max=1000))
    lease = take(leases, 0, 400)
    for mono_ms in range(0, 1000, 100):
        leases.expire(mono_ms)
        lease.renew(mono_ms)
    assert leases.get(lease.id) is lease
    leases.expire(1000)
    assert leases.get(lease.id) is None


def test_those_that_reach_back_furthest_end_when_too_much_is_held_back() -> None:
    log = Log()
    leases = ReaderLeases(log, LeasesOptions(held_bytes_max=1 << 20))
    far, near, at_end = (take(leases, position, 1 << 40) for position in (-(3 << 20), -(2 << 20), 0))
    leases.expire(0)
    assert [leases.get(each.id) for each in (far, near, at_end)] == [None, None, at_end]
    assert leases.next_deadline_ms() == CHECK_MS
    take(leases, -(3 << 20), 1 << 40)
    leases.expire(CHECK_MS - 1)
    assert len(leases) == 2
    leases.expire(CHECK_MS)
    assert len(leases) == 1


def test_table_is_bounded_for_all_and_for_each_address() -> None:
    leases = ReaderLeases(Log(), LeasesOptions(count_max=3, per_address_max=2))
    first = take(leases, 0, 1000)
    take(leases, 0, 2000)
    with pytest.raises(TooManyLeases, match=r"192.0.2.1 has 2 leases.*the next ends within 900 ms"):
        take(leases, 0, 1000, 100)
    take(leases, 0, 1000, address="192.0.2.2")
    with pytest.raises(TooManyLeases, match=r"there are 3 leases, leases\.count_max=3"):
        take(leases, 0, 1000, address="192.0.2.3")
    leases.release(first)
    take(leases, 0, 1000, address="192.0.2.1")
