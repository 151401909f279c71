"""The client of the HTTP API that the commands use: JSON requests and answers; each failure is a one-line error."""

import json
import os
import ssl
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote

import typer

from duolog.bridge.cli.access import credentials

CA_VARIABLE = "DUOLOG_CA_FILE"
TIMEOUT_S = 10.0
PORT_MAX = 65535
STANDBY = 307  # The status with which a standby names the owner.
REDIRECTIONS_MAX = 3


class HttpApiError(typer.TyperException):
    """The broker answered with an error, or not at all; exit status 1."""

    exit_code = 1


class Api:
    """The HTTP API of the broker at `HOST:PORT` or `https://HOST:PORT`.

    `token` is sent if it is not None (`http.readers_file`), and else the login of the environment. With https, the
    certificate of the broker must be signed by a CA in the file that DUOLOG_CA_FILE names, or by one of the system's. A
    standby's answer leads to the owner, which is asked from then on.
    """

    token: str | None = None

    def __init__(self, address: str) -> None:
        given, self._is_encrypted = address, address.startswith("https://")
        address = address.removeprefix("https://").removeprefix("http://").rstrip("/")
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not (port.isascii() and port.isdecimal()) or not 0 < int(port[:6]) <= PORT_MAX:
            raise typer.BadParameter(f"--http: expected HOST:PORT, or https://HOST:PORT for TLS, got {given!r}")
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

    def _authorization(self) -> dict[str, str]:
        """Return the header with the login."""
        login = credentials.authorization(os.environ) if self.token is None else credentials.bearer(self.token)
        return {} if login is None else {"Authorization": login}

    def _call(self, method: str, path: tuple[str, ...], body: str | None = None) -> Any:
        """Send a request to the path of these parts, which may be names, and return the answer. Raises HttpApiError."""
        target = "/".join([path[0], *(quote(name, safe="") for name in path[1:])])
        for _ in range(REDIRECTIONS_MAX):
            response, content = self._exchange(method, target, body)
            if response.status != STANDBY or not self._follow(response.headers.get("Location", "")):
                return _decoded(content, response.status, self.address)
        raise HttpApiError(f"{self.address}: the brokers name each other as the owner of the log: try again")

    def _follow(self, location: str) -> bool:
        """Ask the broker of this URL from now on, which a standby names as the owner; False: it is none."""
        scheme, _, rest = location.partition("://")
        host, _, port = rest.partition("/")[0].rpartition(":")
        if scheme != ("https" if self._is_encrypted else "http") or not host or not port.isdecimal():
            return False
        self.address, self._host, self._port = f"{host}:{port}", host.strip("[]"), int(port)
        return True

    def _exchange(self, method: str, target: str, body: str | None) -> tuple[HTTPResponse, bytes]:
        """Send one request; return its answer, and the content of that. Raises HttpApiError."""
        connection = self._connection()
        try:
            connection.request(method, target, body, {"Content-Type": "application/json"} | self._authorization())
            response = connection.getresponse()
            return response, response.read()
        except (ConnectionResetError, BrokenPipeError) as error:
            raise HttpApiError(
                f"{self.address} has closed the connection without an answer: it is not the HTTP port of a Duolog "
                "broker, or the broker is stopping, or requires TLS (--http names its HTTP port, with https:// for TLS)"
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise HttpApiError(
                f"the certificate of {self.address} is not trusted: {error.verify_message} ({CA_VARIABLE} names the "
                "file of its CA)"
            ) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "strerror", None) or error
            raise HttpApiError(f"no broker answers on {self.address}: {reason} (--http names its HTTP port)") from error
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        if not self._is_encrypted:
            return HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        file = os.environ.get(CA_VARIABLE)
        try:
            context = ssl.create_default_context(cafile=file)
        except OSError as error:
            raise HttpApiError(f"{CA_VARIABLE}={file} cannot be read: {error.strerror or error}") from error
        return HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=context)


def _decoded(content: bytes, status: int, address: str) -> Any:
    try:
        answer = json.loads(content)
    except ValueError as error:
        raise HttpApiError(
            f"{address} is not the HTTP port of a Duolog broker: it answered status {status}, {content[:60]!r}"
        ) from error
    if status >= 300:
        text = str(answer["error"]) if isinstance(answer, dict) and "error" in answer else f"status {status}"
        if text.startswith("security.enabled:"):  # The request had no login.
            text = f"{text} (commands take them from {credentials.USER} and {credentials.PASSWORD}; set both)"
        raise HttpApiError(text)
    return answer
