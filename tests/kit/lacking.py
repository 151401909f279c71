"""Skips a test for which the machine lacks something; fails it in CI, where tests must not be skipped."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

IN_CI = os.environ.get("CI", "").lower() == "true"
MAY_BE_SKIPPED_IN_CI = (
    "no Node.js",
    "no browser",
    "no container engine",
    "no grafana",
    "no history",
    "no promtool",
    "no prometheus",
    "no systemd-analyze",
)


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the running test, or fail it in CI.

    `reason` names what is missing, and the error of the attempt to use it.
    """
    if IN_CI and not reason.startswith(MAY_BE_SKIPPED_IN_CI):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
