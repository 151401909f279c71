"""The broker verifies the servers that it asks over HTTPS: the object store, the keys of tokens, a collector of spans.

Each is asked with the right CA, with another one, with the system's alone, and by a host name that the certificate does
not have.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from duolog.bridge.config import TlsOptions
from duolog.bridge.net.tls.outgoing import outgoing_context
from duolog.bridge.security.oauth.key_sets import reader_of
from duolog.bridge.tracing import otlp
from duolog.bridge.tracing.span_queue import Span, SpanQueue
from duolog.bridge.tracing.trace_context import TraceContext
from duolog.store.objects.errors import StoreRefused
from duolog.store.objects.opening import open_objects
from duolog.store.objects.options import ObjectStoreOptions
from tests.kit.broker import Broker
from tests.kit.certificates import Authority
from tests.kit.command import run_duolog
from tests.kit.object_servers import KEYS
from tests.wire.test_security import PASSWORDS, add_user

KEY = ec.generate_private_key(ec.SECP256R1())
CONTENT = json.dumps({"keys": [{**ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "one"}]}).encode()


class _Handler(BaseHTTPRequestHandler):
    """Answers each GET with CONTENT, by path with less of it, with another protocol, or by a redirection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.close_connection = True
        if self.path == "/nonsense":
            self.wfile.write(b"220 mail.example ESMTP\r\n")
            return
        self.send_response(302 if self.path.startswith("/to/") else 200)
        if self.path.startswith("/to/"):
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.send_header("Content-Length", "0")
        elif self.path == "/cut":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(CONTENT)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Tue, 24 Nov 2026 12:00:00 GMT")
        self.end_headers()
        if not self.path.startswith("/to/"):
            self.wfile.write(b"FF\r\n{" if self.path == "/cut" else CONTENT)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def https_server(authority: Authority, *hosts: str) -> Iterator[str]:
    """Serve over HTTPS; yield the URL with the host name `localhost`."""
    files = authority.server(*hosts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("trusted", ["store", "other", "system"])
@pytest.mark.parametrize("host", ["localhost", "store.example"])
def test_object_store_needs_the_right_ca_and_host_name(
    trusted: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL_CERT_FILE names the CAs that are trusted instead of the system's."""
    authorities = {name: Authority(tmp_path / name, name) for name in ("store", "other")}
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if trusted in authorities:
        monkeypatch.setenv("SSL_CERT_FILE", str(authorities[trusted].file))
    for variable, value in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), KEYS, strict=True):
        monkeypatch.setenv(variable, value)
    with https_server(authorities["store"], host) as url:
        objects = open_objects(ObjectStoreOptions("s3://bucket/prefix", endpoint=url, region="us-east-1"))
        if (trusted, host) == ("store", "localhost"):
            assert asyncio.run(objects.get("key", 1000)) == CONTENT
        else:
            with pytest.raises(StoreRefused, match=r"certificate of the store is not trusted.* SSL_CERT_FILE"):
                asyncio.run(objects.get("key", 1000))


def trusting(authority: Authority) -> ssl.SSLContext:
    return outgoing_context(TlsOptions(outgoing_ca_file=str(authority.file)))


@pytest.mark.parametrize("host", ["localhost", "idp.example"])
def test_keys_of_tokens_need_the_right_ca_and_host_name(host: str, tmp_path: Path) -> None:
    """What verifies is asked for at each read, so a reload of `tls.outgoing_ca_file` counts from the next one on."""
    idp, other = Authority(tmp_path / "idp", "idp"), Authority(tmp_path / "other", "other")
    in_force: list[ssl.SSLContext | None] = [None]
    with https_server(idp, host) as url:
        read = reader_of(f"{url}/keys", lambda: in_force[0])
        for context in (None, trusting(other), outgoing_context(TlsOptions())):
            in_force[0] = context
            with pytest.raises(OSError, match="certificate verify failed"):
                read()
        in_force[0] = trusting(idp)
        if host == "localhost":
            assert read() == CONTENT
        else:
            with pytest.raises(OSError, match="certificate is not valid for 'localhost'"):
                read()


def test_bad_answer_of_the_key_server_is_an_error_of_the_read(tmp_path: Path) -> None:
    idp = Authority(tmp_path)
    with https_server(idp) as url:
        for path, reason in (
            ("cut", "IncompleteRead"),
            ("nonsense", "BadStatusLine"),
            ("to/http://localhost:1/keys", "redirects to http://localhost:1/keys, which has no TLS"),
        ):
            with pytest.raises(OSError, match=reason):
                reader_of(f"{url}/{path}", lambda: trusting(idp))()
        assert reader_of(f"{url}/to/{url}/keys", lambda: trusting(idp))() == CONTENT


def test_reload_of_the_cas_reaches_the_reader_of_keys(tmp_path: Path) -> None:
    """The broker begins with another CA in `tls.outgoing_ca_file`, by which it could not read the keys."""
    idp, other = Authority(tmp_path / "idp", "idp"), Authority(tmp_path / "other", "other")
    cas = tmp_path / "outgoing.pem"
    cas.write_bytes(other.file.read_bytes())
    add_user(tmp_path / "data", "root", "--super")
    token = jwt.encode({"sub": "root", "exp": int(time.time()) + 600}, KEY, "ES256", headers={"kid": "one"})
    with https_server(idp) as url:
        settings = {"security.enabled": "true", "security.oauth_keys": f"{url}/keys", "tls.outgoing_ca_file": cas}
        with Broker(tmp_path / "data", settings) as broker:
            cas.write_bytes(idp.file.read_bytes())
            at = {"DUOLOG_HTTP": broker.http}
            reloaded = run_duolog("config", "reload", **at, DUOLOG_USER="root", DUOLOG_PASSWORD=PASSWORDS["root"])
            assert reloaded.returncode == 0, reloaded.stderr
            listed = run_duolog("user", "list", **at, DUOLOG_TOKEN=token)
            assert (listed.returncode, "root" in listed.stdout) == (0, True), listed.stderr


@pytest.mark.parametrize("trusted", ["collector", "other"])
@pytest.mark.parametrize("host", ["localhost", "collector.example"])
def test_collector_of_spans_needs_the_right_ca_and_host_name(
    trusted: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorities = {name: Authority(tmp_path / name, name) for name in ("collector", "other")}
    for overriding in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(overriding, raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(authorities[trusted].file))
    queue = SpanQueue(10)
    with https_server(authorities["collector"], host) as url:
        thread = otlp.start(queue, f"{url}/v1/traces", {}, 2_000, "duolog")
        queue.add(Span("publish", "orders", TraceContext(1, 1), 1, 2, {}))
        thread.stop()
    is_trusted = (trusted, host) == ("collector", "localhost")
    assert (queue.exported, queue.failed) == ((1, 0) if is_trusted else (0, 1))
