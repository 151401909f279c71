"""`compose.yaml` starts a broker and a Spark container that archives its topics, where a container engine answers.

BASE_IMAGE names the image to build on, as for `docker compose` itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.eventually import eventually
from tests.kit.lacking import leave_out

ROOT = Path(__file__).parents[2]
WITHIN_S = 300


def require_engine() -> None:
    """Leave the test out, with the engine's own words, unless one answers and can compose."""
    import docker
    import docker.errors

    try:
        docker.from_env(timeout=5).ping()
    except (docker.errors.DockerException, OSError) as error:
        leave_out(f"no container engine: {error}")


@pytest.mark.timeout(900)
def test_composed_archive_has_what_the_composed_broker_got() -> None:
    require_engine()
    from testcontainers.compose import DockerCompose

    with DockerCompose(ROOT, build=True, wait=False) as composed:
        composed.exec_in_container(["duolog", "demo"], "broker")

        def archived() -> str:
            out, _, _ = composed.exec_in_container(
                ["sh", "-c", "find /var/lib/duolog/lake -name '*.parquet' | wc -l"], "archive"
            )
            return str(out).strip()

        eventually("files of the archive", archived, lambda count: count.isdecimal() and int(count) > 0, WITHIN_S)
