"""The duties of a broker, which a test runs by a clock that it moves.

They are those that a broker registers with its ticker (`bridge/duties.py`), in the same order.
"""

from collections.abc import Callable
from functools import partial

from duolog.bridge import duties
from duolog.bridge.core import Core
from duolog.bridge.rocketmq.producing.check_backs import check_back_loop
from duolog.bridge.transactions.check_callbacks import CheckCallbacks
from duolog.store.errors import StoreError


class ManualDuties:
    """All duties of a core. `run` does what the ticker does in one call: each duty that is due runs once."""

    def __init__(self, core: Core) -> None:
        self._faults = core.faults
        self._if_due: list[Callable[[int, int], None]] = []
        callbacks = CheckCallbacks(1_000, partial(core.faults.contain, kind="callback"))
        self.check_backs = check_back_loop(core.rocketmq_context, core.half_decisions, callbacks)
        duties.register(core, self.check_backs, self._add)

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Run each duty that is due."""
        for run_if_due in self._if_due:
            run_if_due(now_ms, mono_ms)

    def _add(
        self,
        name: str,
        next_deadline_ms: Callable[[], int | None],
        run: Callable[[int, int], object],
        *,
        is_wall: bool = False,
        is_upkeep: bool = False,  # No duty of a test is late.
    ) -> None:
        def run_if_due(now_ms: int, mono_ms: int) -> None:
            deadline_ms = next_deadline_ms()
            if deadline_ms is None or deadline_ms > (now_ms if is_wall else mono_ms):
                return
            try:
                run(now_ms, mono_ms)
            except StoreError:
                pass  # The ticker retries the duty later.
            except Exception as error:  # noqa: BLE001 - as the ticker does
                self._faults.contain(error, f"ticker {name}")

        self._if_due.append(run_if_due)
