"""What happens to the owner of a shared log, and to its store, when a standby must take over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from tests.wire.clients.shared_pair import Pair

# From the fault to the next acknowledged send of a Kafka client, on a machine that other programs slow down. Five
# seconds are promised: `tests/unit/store/shared/test_takeover_time.py` holds them in virtual time.
TAKEOVER_WITHIN_S = 10.0
STORE_AWAY_WITHIN_S = 10.0  # The same for a store that is away or has faults.
BAD_STORE_WITHIN_S = 5.0  # The same for a store with faults and an owner that lives.
CUT_OFF_WITHIN_S = 20.0  # The same for a machine without a network.
PAUSE_S, LONG_PAUSE_S = 8.0, 30.0


class Fault(NamedTuple):
    """What happens to the owner, and how it ends once the standby has taken over."""

    begin: Callable[[Pair], None]
    end: Callable[[Pair], None]
    within_s: float = TAKEOVER_WITHIN_S
    is_proxied: bool = False  # Whether it needs proxies before the store.


def kill(pair: Pair) -> None:
    pair.owner.kill()


def start(pair: Pair) -> None:
    pair.owner.start()


def lose_disk(pair: Pair) -> None:
    pair.owner.delete()


def cut_off(pair: Pair) -> None:
    pair.proxies[0].faults.is_cut = True


def mend(pair: Pair) -> None:
    pair.proxies[0].faults.is_cut = False


def kill_both(pair: Pair) -> None:
    pair.owner.kill()
    pair.standby.kill()
    pair.standby.start()


def paused_for(pause_s: float) -> Fault:
    def wake(pair: Pair) -> None:
        time.sleep(pause_s)
        pair.wake_owner()

    return Fault(Pair.pause_owner, wake)


def bad_store(**faults: float) -> Fault:
    """The store of both brokers has faults, and the owner serves on with it."""

    def begin(pair: Pair) -> None:
        for proxy in pair.proxies:
            for name, value in faults.items():
                setattr(proxy.faults, name, value)

    def end(pair: Pair) -> None:
        for proxy in pair.proxies:
            for name in faults:
                setattr(proxy.faults, name, 0.0)

    return Fault(begin, end, BAD_STORE_WITHIN_S, is_proxied=True)


def killed_with(store: Fault) -> Fault:
    """The owner is killed after it has served with a bad store for some time."""

    def begin(pair: Pair) -> None:
        store.begin(pair)
        time.sleep(3.0)
        pair.owner.kill()

    def end(pair: Pair) -> None:
        store.end(pair)
        pair.owner.start()

    return Fault(begin, end, STORE_AWAY_WITHIN_S + 3.0, is_proxied=True)


# The store has faults, and no broker has any: no standby may take over.
FAULTS_OF_STORE = {
    "slow store": bad_store(latency_ms=2_000),
    "busy store": bad_store(busy=0.3),
    "conflicts": bad_store(conflict=0.3),
    "lost answers": bad_store(lost_answer=0.3),
    "repeated requests": bad_store(repeated=0.3),
    "stale lists": bad_store(stale_list=1.0),
}
FAULTS = {
    "killed": Fault(kill, start),
    "cut off from the store": Fault(cut_off, mend, STORE_AWAY_WITHIN_S, is_proxied=True),
    "paused": paused_for(PAUSE_S),
    "disk lost": Fault(lose_disk, start),
    "standby killed as well": Fault(kill_both, start, TAKEOVER_WITHIN_S),
    "paused for long": paused_for(LONG_PAUSE_S),
    **{f"killed, {name}": killed_with(store) for name, store in FAULTS_OF_STORE.items()},
}
# For brokers in network namespaces.
FAULTS_OF_NETWORK = {
    "unplugged": Fault(Pair.unplug_owner, Pair.plug_owner, CUT_OFF_WITHIN_S),  # From clients, store and other broker.
    "cut off from clients": Fault(Pair.cut_off_clients, Pair.mend_clients),  # It reaches the store.
}
