"""The delays of failed messages before they are tried again, by the retry policies of groups (`groupRetryPolicy`).

    CUSTOMIZED    a list of delays that replaces the delay levels; the first failure takes the third delay
    EXPONENTIAL   initial * multiplier ** failures, up to max

A policy without parameters, which is the default, uses `delay.levels`. A policy is checked when it is set.
`dead_letters.py` decides whether an attempt is left.
Source: CustomizedRetryPolicy.java, ExponentialRetryPolicy.java.
"""

from typing import Final

from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.protocol.rocketmq.bodies import GroupRetryPolicy
from duolog.protocol.rocketmq.codes import ResponseCode

CUSTOMIZED: Final = "CUSTOMIZED"
EXPONENTIAL: Final = "EXPONENTIAL"
STEPS_MAX: Final = 256  # The length of a list of delays.
SKIPPED_STEPS: Final = 2
FAILURES_MAX: Final = 32  # Apache RocketMQ limits the exponent in the same way.

_EXPONENTIAL_DEFAULTS: Final = {"initial": 5_000, "max": 7_200_000, "multiplier": 2}


def check_policy(policy: GroupRetryPolicy, delay_ms_max: int) -> None:
    """Raise RequestRefused for an invalid policy, or one with a longer delay than `delay_ms_max`."""
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
    """Return the delay of a message that has failed once more than `failures` times; None: the delay level decides."""
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
    values = {**_EXPONENTIAL_DEFAULTS, **(policy.exponential_retry_policy or {})}
    return values["initial"], values["max"], values["multiplier"]


def _refused(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, f"groupRetryPolicy: {reason}")
