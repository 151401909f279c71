"""The broker's HTTP port, as jobs ask it: JSON in and out, every failure one line."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.parse import quote, urlencode

TIMEOUT_S: Final = 60.0


class ApiError(Exception):
    """The broker refused, or is not there."""


class BrokerApi:
    """Calls to one broker, `HOST:PORT`; with a token, if it asks for one."""

    def __init__(self, address: str, token: str = "") -> None:
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            raise ApiError(f"expected HOST:PORT of the broker's HTTP port, got {address!r}")
        self.address = address
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._host, self._port = host.strip("[]"), int(port)

    def get(self, *path: str, **query: object) -> Any:
        return self._call("GET", _target(path, query))

    def post(self, *path: str, body: object = None) -> Any:
        return self._call("POST", _target(path, {}), None if body is None else json.dumps(body))

    def _call(self, method: str, target: str, body: str | None = None) -> Any:
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, target, body, self._headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, HTTPException) as error:
            raise ApiError(f"no broker answers on {self.address}: {error}") from error
        finally:
            connection.close()
        try:
            answer = json.loads(content)
        except ValueError:
            raise ApiError(f"{self.address} is no Duolog broker: status {response.status}, {content[:60]!r}") from None
        if response.status >= 400:
            raise ApiError(str(answer["error"]) if isinstance(answer, dict) and "error" in answer else f"{answer}")
        return answer


def _target(path: tuple[str, ...], query: dict[str, object]) -> str:
    """Join the path's parts, names among them, and what is asked."""
    joined = "/".join([path[0], *(quote(name, safe="") for name in path[1:])])
    return f"{joined}?{urlencode(query)}" if query else joined
