"""What becomes of faults in tests: each is raised where it happens, unless the test wants them contained.

core = ManualCore()                 # a bug fails the test, as if nothing contained it
core.faults.is_strict = False       # from now on as in a broker that runs: counted, logged, and kept to its request
"""

from duolog.bridge.monitoring.faults import Faults


class StrictFaults(Faults):
    """Raises what it is given."""

    is_strict = True

    def contain(self, error: BaseException, kind: str, peer: str = "") -> None:
        if self.is_strict:
            raise error
        super().contain(error, kind, peer)


def reraise(error: BaseException) -> None:
    raise error
