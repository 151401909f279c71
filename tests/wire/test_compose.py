"""`compose.yaml` starts a broker and a Spark container that archives its topics, where a container engine answers.

A stock client of this machine uses the broker by its port on 127.0.0.1. What the archive then has is compared with the
broker by the job that is there for it.

BASE_IMAGE names the image to build on, as for `docker compose` itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.kit.broker import free_ports
from tests.kit.eventually import eventually
from tests.kit.lacking import skip_or_fail

ROOT = Path(__file__).parents[2]
PORTS = ("KAFKA_PORT", "ROCKETMQ_PORT", "NAMESRV_PORT", "HTTP_PORT")
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
def test_composed_archive_has_what_the_composed_broker_got(monkeypatch: pytest.MonkeyPatch) -> None:
    require_engine()
    from testcontainers.compose import DockerCompose

    port_of = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    for name, port in port_of.items():
        monkeypatch.setenv(name, str(port))
    with DockerCompose(ROOT, build=True, wait=False) as composed:
        uid, _, _ = composed.exec_in_container(["id", "-u"], "broker")
        assert uid.strip() == "10001"
        http = f"127.0.0.1:{port_of['HTTP_PORT']}"
        composed.exec_in_container(["duolog", "demo", "--http", http], "broker")  # A message of each protocol.
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port_of['KAFKA_PORT']}"})
        producer.produce("from-outside", b"by the published port")
        assert producer.flush(30) == 0

        def compared() -> Any:
            job = f"duolog pipeline run reconcile lake --http {http} --json"
            out, _, _ = composed.exec_in_container(["sh", "-c", f"{job} 2>/dev/null || true"], "archive")
            return json.loads(out) if out.startswith("{") else out

        found = eventually(
            "what archive and broker say",
            compared,
            lambda seen: isinstance(seen, dict) and seen["records equal"] >= 3,
            WITHIN_S,
        )
    assert [found[kind] for kind in ("missing", "repeated", "changed", "invented")] == [0, 0, 0, 0]
