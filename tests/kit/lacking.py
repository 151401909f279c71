"""What to do when the machine lacks what a test needs: skip with the reason, or fail where nothing may be skipped."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

IN_CI = os.environ.get("CI", "").lower() == "true"
MAY_BE_SKIPPED_IN_CI = "no container engine"


def leave_out(reason: str) -> NoReturn:
    """Leave the running test out. `reason` names what is missing, with the error of whoever looked for it."""
    if IN_CI and not reason.startswith(MAY_BE_SKIPPED_IN_CI):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
