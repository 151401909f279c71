"""How long a group's failed messages wait, where a tool has set a policy of its own: `groupRetryPolicy`.

    CUSTOMIZED    a list of delays; as with the levels that it stands for, the first failure takes the third of them
    EXPONENTIAL   initial * multiplier ** failures, up to max

A policy without parameters, which every group has unless told otherwise, is the ladder of `delay.levels`. A policy is
checked when it is set. Source: CustomizedRetryPolicy.java, ExponentialRetryPolicy.java.
"""

from typing import Final

from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.protocol.rocketmq.bodies import GroupRetryPolicy
from duolog.protocol.rocketmq.codes import ResponseCode

CUSTOMIZED: Final = "CUSTOMIZED"
EXPONENTIAL: Final = "EXPONENTIAL"
STEPS_MAX: Final = 256  # Of a list of delays.
SKIPPED_STEPS: Final = 2
FAILURES_MAX: Final = 32  # Java counts no further either, which bounds the power.

_EXPONENTIAL_DEFAULTS: Final = {"initial": 5_000, "max": 7_200_000, "multiplier": 2}


def check_policy(policy: GroupRetryPolicy, delay_ms_max: int) -> None:
    """Raise RequestRefused for a policy that means nothing, or waits for longer than any message may."""
    if policy.type not in (CUSTOMIZED, EXPONENTIAL):
        raise _refused(f"type {policy.type[:80]!r}; known: {CUSTOMIZED}, {EXPONENTIAL}")
    steps = _steps(policy)
    if steps is not None and not (0 < len(steps) <= STEPS_MAX and all(0 < step <= delay_ms_max for step in steps)):
        raise _refused(f"next: 1 to {STEPS_MAX} delays of 1 to {delay_ms_max} ms, got {str(steps)[:200]}")
    initial, most, multiplier = _exponential(policy)
    if not (0 < initial <= most <= delay_ms_max and multiplier >= 1):
        got = f"initial={initial} max={most} multiplier={multiplier}"
        raise _refused(f"0 < initial <= max <= {delay_ms_max} and multiplier >= 1, got {got}")


def delay_ms_of(policy: GroupRetryPolicy, failures: int) -> int | None:
    """Give the delay of a message that had failed so often before it failed now; None: as the levels say."""
    failures = min(max(failures, 0), FAILURES_MAX)
    if policy.type == EXPONENTIAL and policy.exponential_retry_policy is not None:
        initial, most, multiplier = _exponential(policy)
        return int(min(most, initial * multiplier**failures))
    steps = _steps(policy)
    if policy.type != CUSTOMIZED or not steps:
        return None
    return steps[min(failures + SKIPPED_STEPS, len(steps) - 1)]


def _steps(policy: GroupRetryPolicy) -> list[int] | None:
    return (policy.customized_retry_policy or {}).get("next")


def _exponential(policy: GroupRetryPolicy) -> tuple[int, int, int]:
    told = {**_EXPONENTIAL_DEFAULTS, **(policy.exponential_retry_policy or {})}
    return told["initial"], told["max"], told["multiplier"]


def _refused(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, f"groupRetryPolicy: {reason}")
