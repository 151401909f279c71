"""Faults in unit tests: an unexpected exception fails the test, unless the test allows it.

core = ManualCore()                 # a fault raises where it happens
core.faults.is_strict = False       # from now on faults are contained, as in a running broker
"""

from duolog.bridge.monitoring.faults import Faults


class StrictFaults(Faults):
    """Raises the exceptions that it gets while `is_strict` is True."""

    is_strict = True

    def contain(self, error: BaseException, kind: str, peer: str = "") -> None:
        if self.is_strict:
            raise error
        super().contain(error, kind, peer)


def reraise(error: BaseException) -> None:
    raise error
