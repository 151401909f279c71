"""Small stand-ins for the APIs of Google Cloud Storage and Azure Blob Storage, which keep objects in memory.

    with FakeAzure() as store:
        open_objects(ObjectStoreOptions("az://bucket/prefix", endpoint=store.endpoint))     # in `store.environment`

They have what `obstore` sends for an ObjectStore: create-if-absent, reads, lists in pages, deletes. Each of them runs
in a thread and listens on loopback. Signatures are not checked.

Google answers 412 where an object exists, and has no request for several deletes. Azure answers 409 with a code of its
own, begins a list with the key that is asked for, and takes deletes in a batch, in which each has a status.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import ClassVar, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
PAGE = 3  # Objects of one page of a list, so that tests with few objects have several pages.
TIME = "Tue, 24 Nov 2026 14:05:12 GMT"


class Answer(NamedTuple):
    """The status, the body, and headers beside those that each answer has."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class CloudServer:
    """What both have in common, a context manager. `seen` counts requests by method and status."""

    environment: ClassVar[dict[str, str]] = {}
    missing = ""  # The code of an answer about an object that does not exist.

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.seen: Counter[tuple[str, int]] = Counter()
        self.refusal: Answer | None = None  # The answer to everything.
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, name="cloud-server", daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        url = urlsplit(target)
        bucket, _, key = url.path.lstrip("/").partition("/")
        assert bucket == BUCKET, target
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        with self._lock:
            found = self.refusal or self._answer(method, unquote(key), query, headers, body)
            self.seen[method, found.status] += 1
            return found

    def _answer(self, method: str, key: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> Answer:
        match method, key:
            case "PUT", _:
                return self._create(key, headers, body)
            case "GET", "":
                return self._list(query)
            case "GET", _:
                return self._get(key, headers)
            case "DELETE", _:
                return self._delete(key)
            case "POST", "":
                return self._batch(body)
        raise AssertionError(f"{method} {key}")

    def _create(self, key: str, headers: dict[str, str], body: bytes) -> Answer:
        raise NotImplementedError

    def _list(self, query: dict[str, str]) -> Answer:
        raise NotImplementedError

    def _batch(self, body: bytes) -> Answer:
        raise NotImplementedError

    def _get(self, key: str, headers: dict[str, str]) -> Answer:
        content = self.objects.get(key)
        if content is None:
            return refusal(404, self.missing)
        if "range" not in headers:
            return Answer(200, content)
        first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
        if first >= len(content):
            return refusal(416, "InvalidRange")
        part = content[first : last + 1]
        return Answer(206, part, (("content-range", f"bytes {first}-{first + len(part) - 1}/{len(content)}"),))

    def _delete(self, key: str) -> Answer:
        return refusal(404, self.missing) if self.objects.pop(key, None) is None else Answer(202)

    def _page(self, query: dict[str, str], marker: str) -> tuple[list[str], str]:
        """Return the keys of one page, and the marker of the next one; it is empty at the end."""
        keys = sorted(each for each in self.objects if each.startswith(query.get("prefix", "")))
        keys = [each for each in keys if each >= query.get(marker, "")]
        return keys[:PAGE], "".join(keys[PAGE : PAGE + 1])


class FakeGoogle(CloudServer):
    """Google's XML API (https://docs.cloud.google.com/storage/docs/xml-api/overview)."""

    environment: ClassVar = {
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(
            {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        )
    }
    missing = "NoSuchKey"

    def _create(self, key: str, headers: dict[str, str], body: bytes) -> Answer:
        if headers.get("x-goog-if-generation-match") == "0" and key in self.objects:
            return refusal(412, "PreconditionFailed")
        self.objects[key] = body
        return Answer(200)

    def _list(self, query: dict[str, str]) -> Answer:
        assert query["list-type"] == "2"
        if "continuation-token" not in query and "start-after" in query:
            query = query | {"continuation-token": query["start-after"] + "\0"}
        keys, marker = self._page(query, "continuation-token")
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-24T14:05:12.000Z</LastModified>"
            f'<ETag>"1"</ETag><Size>{len(self.objects[key])}</Size></Contents>'
            for key in keys
        )
        following = f"<NextContinuationToken>{escape(marker)}</NextContinuationToken>" if marker else ""
        return Answer(200, f"<ListBucketResult>{rows}{following}</ListBucketResult>".encode())


class FakeAzure(CloudServer):
    """Azure's Blob service (https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api)."""

    environment: ClassVar = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}
    missing = "BlobNotFound"

    def __init__(self) -> None:
        super().__init__()
        self.kept: set[str] = set()  # Objects whose deletion is refused: a lease, or a policy.
        self.has_start_from = True  # False: lists begin with the first key, as before version 2026-02-06 of the API.

    def _create(self, key: str, headers: dict[str, str], body: bytes) -> Answer:
        if headers.get("if-none-match") == "*" and key in self.objects:
            return refusal(409, "BlobAlreadyExists")
        self.objects[key] = body
        return Answer(201)

    def _list(self, query: dict[str, str]) -> Answer:
        assert (query["restype"], query["comp"]) == ("container", "list")
        if self.has_start_from and "marker" not in query and "startFrom" in query:
            query = query | {"marker": query["startFrom"]}  # A list begins with this key.
        keys, marker = self._page(query, "marker")
        rows = "".join(
            f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{TIME}</Last-Modified><Etag>1</Etag>"
            f"<Content-Length>{len(self.objects[key])}</Content-Length><Content-Type>a/b</Content-Type>"
            "</Properties></Blob>"
            for key in keys
        )
        body = f"<Blobs>{rows}</Blobs><NextMarker>{escape(marker)}</NextMarker>"
        return Answer(200, f"<EnumerationResults>{body}</EnumerationResults>".encode())

    def _batch(self, body: bytes) -> Answer:
        parts = []
        for number, path in re.findall(rb"Content-ID: (\d+)\r\n\r\nDELETE /\S+?/(\S+) HTTP/1.1\r\n", body):
            key = unquote(path.decode())
            done = refusal(409, "LeaseIdMissing") if key in self.kept else self._delete(key)
            self.seen["DELETE", done.status] += 1
            head = (
                f"Content-Type: application/http\r\nContent-ID: {number.decode()}\r\n\r\nHTTP/1.1 {done.status} X\r\n"
            )
            fields = "".join(f"{name}: {value}\r\n" for name, value in done.headers)
            parts.append(f"--batch\r\n{head}{fields}\r\n{done.body.decode()}\r\n")
        assert len(parts) <= 256, "the limit of Azure"
        return Answer(
            202, ("".join(parts) + "--batch--\r\n").encode(), (("content-type", "multipart/mixed; boundary=batch"),)
        )


def refusal(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>by the stand-in</Message></Error>".encode()
    return Answer(status, body, (("content-type", "application/xml"), ("x-ms-error-code", code)))


def _handler(server: CloudServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            answer = server.answer(self.command, self.path, headers, body)
            self.send_response(answer.status)
            for name, value in (("etag", '"1"'), ("last-modified", TIME), *answer.headers):
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_PUT = do_POST = do_DELETE = _serve

        def log_message(self, *_: object) -> None:
            pass

    return Handler
