"""Proves when a standby takes the owner for cut off from its clients: a table of probes and requests of clients."""

import asyncio

import pytest

from duolog.bridge.cluster.owner_probe import FAILURES, PROBES, OwnerProbe, ProbedOwner
from duolog.bridge.config import LimitsOptions
from duolog.bridge.net.connections import Connections
from duolog.bridge.net.nodes import Endpoints
from tests.kit.clock import HostClock, ManualClock
from tests.kit.hosts import HostLoop, Network, Port, Process, run_hosts

TAKEOVER_MS = 3_000
HOST, PORTS = "10.0.0.1", (9092, 10911)


def owner_of(epoch: int) -> ProbedOwner:
    return ProbedOwner(epoch, Endpoints((HOST, PORTS[0]), (HOST, PORTS[1]), (HOST, 9876), (HOST, 9644)))


# In each history: "+" is a probe that succeeds, "-" one that fails, "c" a request of a client to the standby, "e" the
# beginning of another epoch.
@pytest.mark.parametrize(
    ("history", "is_cut_off"),
    [
        ("", False),
        ("c", False),
        ("c----c", False),  # Never reached: only clients may reach its ports.
        ("+", False),
        ("+-c", False),
        ("+--", False),  # No client asks: this standby may be the one that is cut off.
        ("+c--", True),
        ("+--c", True),
        ("c+--", False),  # The client has asked while the owner was reached.
        ("+-+-c", False),
        ("+--c+", False),
        ("+--c+--", False),
        ("+--c+--c", True),
        ("+--ce", False),  # Another owner, which was not probed yet.
        ("+--ec-", False),  # Another owner, which was never reached. So the stream does not go back to and fro.
        ("+--e+c--", True),
    ],
)
def test_cases(history: str, is_cut_off: bool) -> None:
    assert probe_after(history).is_owner_cut_off is is_cut_off


@pytest.mark.parametrize(
    ("history", "is_reached"),
    [("", True), ("+-", True), ("--", False), ("+--c", False), ("+--+", True), ("+-+-", True), ("+--e", True)],
)
def test_owner_is_not_reached_after_two_failures_until_a_probe_succeeds(history: str, is_reached: bool) -> None:
    assert probe_after(history).is_reached is is_reached


def probe_after(history: str) -> OwnerProbe:
    clock, epoch = ManualClock(), 1
    connections = Connections(LimitsOptions(), clock)
    probe = OwnerProbe(connections, clock, TAKEOVER_MS, lambda: owner_of(epoch))
    for event in history:
        clock.pass_ms(TAKEOVER_MS // PROBES)
        if event == "c":
            connections.heard_mono_ms = clock.mono_ms()
        elif event == "e":
            epoch += 1
        else:
            probe.note(owner_of(epoch), clock.mono_ms(), is_reached=event == "+")
    return probe


@pytest.mark.parametrize("fault", ["packets vanish", "refused", "one port is refused"])
def test_probes_notice_within_half_of_a_takeover(fault: str) -> None:
    clock = ManualClock()

    async def main() -> None:
        network = _network()
        listeners = [network.listen(Port(HOST, number), asyncio.Protocol) for number in PORTS]
        connections = Connections(LimitsOptions(), clock)
        probe = OwnerProbe(connections, clock, TAKEOVER_MS, lambda: owner_of(1))
        Process("10.0.0.2", HostClock(clock)).start(_begin(probe))
        await asyncio.sleep(10)
        begun_mono_ms = clock.mono_ms()
        connections.heard_mono_ms = begun_mono_ms + 1
        assert not probe.is_owner_cut_off
        if fault == "packets vanish":
            network.cut(HOST)
        else:
            for listener in listeners[: 1 if fault == "one port is refused" else 2]:
                listener.close()
        await asyncio.sleep((FAILURES + 1) * TAKEOVER_MS / PROBES / 1000)
        assert probe.is_owner_cut_off is (fault != "one port is refused")
        probe.stop()

    run_hosts(main(), clock, 1)


async def _begin(probe: OwnerProbe) -> None:
    probe.begin()


def _network() -> Network:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HostLoop)
    return loop.network
