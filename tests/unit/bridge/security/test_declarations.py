"""A row of a dispatch table that declares nothing about access does not start the broker, also under `python -O`."""

import asyncio
import subprocess
import sys

import pytest
from aiohttp import web

from duolog.bridge.kafka import TABLE as KAFKA
from duolog.bridge.kafka.requests.access import Access
from duolog.bridge.kafka.requests.api import KafkaApi
from duolog.bridge.rocketmq import request_table
from duolog.bridge.rocketmq.access.requirements import NEEDS
from duolog.bridge.rocketmq.request_table import TABLE as ROCKETMQ
from duolog.protocol.kafka.api_messages import ApiKey
from duolog.protocol.rocketmq.codes import RequestCode
from tests.kit.http import HttpBench

UNDER_O = """
from duolog.bridge.http.access.requirements import check_complete
check_complete({}, [("GET", "/api/new")])
"""


async def handler(request: web.Request) -> web.Response:
    return web.Response()


def test_every_row_has_a_declaration() -> None:
    assert all(isinstance(api.access, Access) for api in KAFKA.values())
    assert all(callable(row.needs) for row in ROCKETMQ.values())


def test_kafka_api_without_a_declaration_cannot_be_made() -> None:
    metadata = KAFKA[ApiKey.METADATA]
    with pytest.raises(TypeError, match="access"):
        KafkaApi(metadata.key, metadata.min_version, metadata.max_version, metadata.handler)  # type: ignore[call-arg]


def test_rocketmq_code_without_a_declaration_cannot_be_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    code = RequestCode.HEART_BEAT
    monkeypatch.delitem(NEEDS, code)
    with pytest.raises(KeyError, match="HEART_BEAT"):
        request_table._row(code, ROCKETMQ[code].handler)


def test_port_with_an_http_route_without_a_declaration_does_not_start() -> None:
    port = HttpBench().port()
    port.application.add_routes([web.get("/api/new", handler)])
    with pytest.raises(AssertionError, match=r"declare nothing about access: .*/api/new"):
        asyncio.run(port.start())


@pytest.mark.slow
def test_check_of_http_routes_holds_without_assertions() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", UNDER_O], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "AssertionError: routes that declare nothing about access" in done.stderr
