"""Proves the clock and the loop of virtual time: time passes only when asked for, in the right order."""

import asyncio
import threading

from duolog.bridge.clock import Clock
from tests.kit.clock import START_MONO_MS, START_NOW_MS, ManualClock
from tests.kit.loop import run

DAY_MS = 86_400_000


def test_wall_time_can_be_set_and_monotonic_time_only_passes() -> None:
    clock: Clock = (manual := ManualClock())
    manual.pass_ms(5)
    manual.set_now_ms(START_NOW_MS - DAY_MS)
    manual.pass_ms(5)
    assert (clock.now_ms(), clock.mono_ms()) == (START_NOW_MS - DAY_MS + 5, START_MONO_MS + 10)


def test_a_sleep_of_days_ends_at_once_and_on_time() -> None:
    async def main() -> None:
        await asyncio.sleep(30 * DAY_MS / 1_000)

    clock = ManualClock()
    run(main(), clock)
    assert clock.now_ms() == START_NOW_MS + 30 * DAY_MS


def test_timers_come_in_the_order_of_their_times_each_at_its_own() -> None:
    clock, events = ManualClock(), list[tuple[str, int]]()

    async def sleep(name: str, ms: int) -> None:
        await asyncio.sleep(ms / 1_000)
        events.append((name, clock.mono_ms() - START_MONO_MS))

    async def main() -> None:
        await asyncio.gather(sleep("c", DAY_MS), sleep("a", 1), sleep("b", 500))

    run(main(), clock)
    assert events == [("a", 1), ("b", 500), ("c", DAY_MS)]


def test_a_thread_is_heard_before_time_jumps_if_it_is_waited_for() -> None:
    clock = ManualClock()

    async def main() -> None:
        loop, answered = asyncio.get_running_loop(), asyncio.Event()
        threading.Thread(target=lambda: loop.call_soon_threadsafe(answered.set)).start()
        await asyncio.wait_for(answered.wait(), 1)

    run(main(), clock, quiet_s=5.0)
    assert clock.mono_ms() == START_MONO_MS
