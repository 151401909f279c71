"""Environment variables of a test: the credentials of an object store, which brokers and commands find there."""

from __future__ import annotations

from collections.abc import Mapping

import pytest


def set_environment(patch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    """Set these variables until the patch is undone."""
    for name, value in variables.items():
        patch.setenv(name, value)
