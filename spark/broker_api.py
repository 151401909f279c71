"""The class BrokerApi: calls of the broker's HTTP API with JSON bodies, for Spark jobs."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.parse import quote, urlencode

CONNECT_WITHIN_S: Final = 2.5  # A command reports within three seconds that no broker answers.
TIMEOUT_S: Final = 60.0


class ApiError(Exception):
    """The broker has refused a request, or no broker answers. The message has one line."""


class BrokerApi:
    """Calls the HTTP API of the broker at `HOST:PORT`. `token` is sent as a bearer token unless it is empty."""

    def __init__(self, address: str, token: str = "") -> None:
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            raise ApiError(f"expected HOST:PORT of the broker's HTTP port, got {address!r}")
        self.address = address
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._host, self._port = host.strip("[]"), int(port)

    def kafka_address(self) -> str:
        """Return HOST:PORT of the broker's Kafka port. HOST is that of the HTTP port, as all ports have one host."""
        port = self.get("/api/status")["listeners"]["kafka"].rpartition(":")[2]
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    def get(self, *path: str, **query: object) -> Any:
        return self._call("GET", _target(path, query))

    def post(self, *path: str, body: object = None) -> Any:
        return self._call("POST", _target(path, {}), None if body is None else json.dumps(body))

    def _call(self, method: str, target: str, body: str | None = None) -> Any:
        connection = HTTPConnection(self._host, self._port, timeout=CONNECT_WITHIN_S)
        try:
            connection.connect()
            connection.sock.settimeout(TIMEOUT_S)
            connection.request(method, target, body, self._headers)
            response = connection.getresponse()
            content = response.read()
        except (ConnectionResetError, BrokenPipeError) as error:
            raise ApiError(
                f"{self.address} has closed the connection without an answer: it is not the HTTP port of a Duolog "
                "broker, or the broker is stopping (--http names its HTTP port)"
            ) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "strerror", None) or error
            raise ApiError(f"no broker answers on {self.address}: {reason} (--http names its HTTP port)") from error
        finally:
            connection.close()
        try:
            answer = json.loads(content)
        except ValueError:
            raise ApiError(
                f"{self.address} is not a Duolog broker: status {response.status}, {content[:60]!r}"
            ) from None
        if response.status >= 400:
            raise ApiError(str(answer["error"]) if isinstance(answer, dict) and "error" in answer else f"{answer}")
        return answer


def _target(path: tuple[str, ...], query: dict[str, object]) -> str:
    """Return the target of a request: the parts of the path, quoted, and the query."""
    joined = "/".join([path[0], *(quote(name, safe="") for name in path[1:])])
    return f"{joined}?{urlencode(query)}" if query else joined
