"""The client of the HTTP API that the commands use: JSON requests and answers; each failure is a one-line error."""

import json
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote

import typer

TIMEOUT_S = 10.0
PORT_MAX = 65535


class HttpApiError(typer.TyperException):
    """The broker answered with an error, or not at all; exit status 1."""

    exit_code = 1


class Api:
    """The HTTP API of the broker at `HOST:PORT`. `token` is sent if it is not None (`http.readers_file`)."""

    token: str | None = None

    def __init__(self, address: str) -> None:
        given, address = address, address.removeprefix("http://").rstrip("/")
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not (port.isascii() and port.isdecimal()) or not 0 < int(port[:6]) <= PORT_MAX:
            raise typer.BadParameter(f"--http: expected HOST:PORT, got {given!r}")
        self.address = address
        self._host, self._port = host.strip("[]"), int(port)

    def get(self, *path: str) -> Any:
        return self._call("GET", path)

    def post(self, path: str, body: Any) -> Any:
        return self._call("POST", (path,), json.dumps(body))

    def act(self, *path: str, body: Any = None) -> Any:
        """Send a POST, with or without a body, to the path of these parts."""
        return self._call("POST", path, None if body is None else json.dumps(body))

    def patch(self, *path: str, body: Any) -> Any:
        return self._call("PATCH", path, json.dumps(body))

    def delete(self, *path: str) -> Any:
        return self._call("DELETE", path)

    def _call(self, method: str, path: tuple[str, ...], body: str | None = None) -> Any:
        """Send a request to the path of these parts, which may be names, and return the answer. Raises HttpApiError."""
        target = "/".join([path[0], *(quote(name, safe="") for name in path[1:])])
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            authorization = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
            connection.request(method, target, body, {"Content-Type": "application/json"} | authorization)
            response = connection.getresponse()
            content = response.read()
        except (ConnectionResetError, BrokenPipeError) as error:
            raise HttpApiError(
                f"{self.address} has closed the connection without an answer: it is not the HTTP port of a Duolog "
                "broker, or the broker is stopping (--http names its HTTP port)"
            ) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "strerror", None) or error
            raise HttpApiError(f"no broker answers on {self.address}: {reason} (--http names its HTTP port)") from error
        finally:
            connection.close()
        return _decoded(content, response.status, self.address)


def _decoded(content: bytes, status: int, address: str) -> Any:
    try:
        answer = json.loads(content)
    except ValueError as error:
        raise HttpApiError(
            f"{address} is not the HTTP port of a Duolog broker: it answered status {status}, {content[:60]!r}"
        ) from error
    if status >= 400:
        raise HttpApiError(
            str(answer["error"]) if isinstance(answer, dict) and "error" in answer else f"status {status}"
        )
    return answer
