"""`compose.yaml` starts a broker and a Spark container that archives its topics, where a container engine answers.

What the archive then has is compared with the broker by the job that is there for it.

BASE_IMAGE names the image to build on, as for `docker compose` itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.eventually import eventually
from tests.kit.lacking import skip_or_fail

ROOT = Path(__file__).parents[2]
WITHIN_S = 300


def require_engine() -> None:
    """Leave the test out, with the engine's own words, unless one answers and can compose."""
    import docker
    import docker.errors

    try:
        docker.from_env(timeout=5).ping()
    except (docker.errors.DockerException, OSError) as error:
        skip_or_fail(f"no container engine: {error}")


@pytest.mark.timeout(900)
def test_composed_archive_has_what_the_composed_broker_got() -> None:
    require_engine()
    from testcontainers.compose import DockerCompose

    with DockerCompose(ROOT, build=True, wait=False) as composed:
        composed.exec_in_container(["duolog", "demo"], "broker")  # A message of each protocol.

        def compared() -> Any:
            job = "duolog pipeline run reconcile lake --http broker:9644 --json"
            out, _, _ = composed.exec_in_container(["sh", "-c", f"{job} 2>/dev/null || true"], "archive")
            return json.loads(out) if out.startswith("{") else out

        found = eventually(
            "what archive and broker say",
            compared,
            lambda seen: isinstance(seen, dict) and seen["records equal"] >= 2,
            WITHIN_S,
        )
    assert [found[kind] for kind in ("missing", "repeated", "changed", "invented")] == [0, 0, 0, 0]
