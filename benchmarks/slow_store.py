"""An S3 server whose every answer takes a given time: `python -m benchmarks.slow_store PORT LATENCY_MS [--forget]`.

It keeps the objects of all buckets in memory until it ends, and knows what a broker asks for: PUT with `If-None-Match`,
GET with and without `Range`, HEAD, lists, and deletes of one or many objects. Signatures are not verified. `PUT
/latency-ms/50` changes the time of later answers. With `--forget`, the store discards the content of objects above 64
KiB, and they have any bytes. It takes no memory from the page cache of a broker beside it, and little of the
processor, as a store elsewhere takes none. Other stores that run on one machine (moto, a proxy before it) would take
more CPU than the broker that is measured.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

HEAD_BYTES = 16 << 10  # Received at a time before the head of a request is complete.
ETAG = '"0"'
DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
LIST_MAX = 1000
LATENCY_PATH = "/latency-ms/"

Body = bytes | bytearray | memoryview
KEPT_BYTES = 64 << 10
FORGOTTEN = memoryview(bytearray(128 << 20))  # The content of every body that is not kept.
DISCARDED_AT_ONCE = 256 << 10  # Less than the receive buffer of a socket, so that so much can be there.


class Answer(NamedTuple):
    """An answer. `size` is the Content-Length of an answer to HEAD, which has no body."""

    status: int
    body: Body = b""
    headers: Mapping[str, str] = {}
    size: int | None = None


class SlowStore:
    """The objects, and the server. Bodies go between the socket and the object, without a buffer between them."""

    def __init__(self, latency_ms: float, *, forgets: bool = False) -> None:
        self._latency_s, self._forgets = latency_ms / 1000, forgets
        self._objects: dict[str, Body] = {}  # By bucket and key, as in the path of a request.

    async def serve(self, port: int) -> None:
        """Serve on loopback until the process ends."""
        loop = asyncio.get_running_loop()
        tasks = set()
        with socket.create_server(("127.0.0.1", port), backlog=100) as server:
            server.setblocking(False)
            while True:
                connection, _ = await loop.sock_accept(server)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                task = asyncio.create_task(self._connection(connection))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    async def _connection(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        received = bytearray()  # The received bytes of the next request.
        with connection, suppress(ConnectionError):
            while (head := await _head(connection, received)) is not None:
                method, target, fields = head
                size = int(fields.get("content-length", "0"))
                is_kept = not self._forgets or not KEPT_BYTES < size <= len(FORGOTTEN)
                body = await (_body if is_kept else _discard)(connection, received, size)
                if body is None:
                    return
                await asyncio.sleep(self._latency_s)
                answer = self.answer(method, target, fields, body)
                size = len(answer.body) if answer.size is None else answer.size
                lines = [f"HTTP/1.1 {answer.status} -", f"content-length: {size}", f"etag: {ETAG}"]
                lines += [f"last-modified: {DATE}", *(f"{name}: {value}" for name, value in answer.headers.items())]
                await loop.sock_sendall(connection, "\r\n".join(lines).encode() + b"\r\n\r\n")
                if answer.body:
                    await loop.sock_sendall(connection, answer.body)

    def answer(self, method: str, target: str, fields: Mapping[str, str], body: Body) -> Answer:
        """Do one request."""
        url = urlsplit(target)
        path, query = unquote(url.path), parse_qs(url.query, keep_blank_values=True)
        match method:
            case "PUT" if path.startswith(LATENCY_PATH):
                self._latency_s = float(path.removeprefix(LATENCY_PATH)) / 1000
                return Answer(200)
            case "PUT":
                return self._put(path, fields, body)
            case "POST":  # DeleteObjects
                keys = re.findall(r"<Key>([^<]*)</Key>", bytes(body).decode())
                for key in keys:
                    self._objects.pop(f"{path.rstrip('/')}/{key}", None)
                rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                return Answer(200, f"<DeleteResult>{rows}</DeleteResult>".encode())
            case "DELETE":
                self._objects.pop(path, None)
                return Answer(204)
            case "HEAD" if path in self._objects:
                return Answer(200, size=len(self._objects[path]))
            case "GET" if "list-type" in query:
                return self._list(path, {name: values[0] for name, values in query.items()})
            case "GET" if path in self._objects:
                return _read(self._objects[path], fields.get("range", ""))
        return Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _put(self, path: str, fields: Mapping[str, str], body: Body) -> Answer:
        if path in self._objects and fields.get("if-none-match") == "*":
            return Answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        self._objects[path] = body
        return Answer(200)

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        root = f"{bucket.rstrip('/')}/"
        after = query.get("continuation-token") or query.get("start-after", "")
        keys = sorted(
            path.removeprefix(root) for path in self._objects if path.startswith(root + query.get("prefix", ""))
        )
        wanted = min(int(query.get("max-keys", LIST_MAX)), LIST_MAX)
        start = bisect_right(keys, after)
        found, rest = keys[start : start + wanted], keys[start + wanted :]
        rows = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{ETAG}</ETag><Size>{len(self._objects[root + key])}</Size></Contents>"
            for key in found
        ]
        more = f"<NextContinuationToken>{escape(found[-1])}</NextContinuationToken>" if rest else ""
        shown = f"<KeyCount>{len(found)}</KeyCount><IsTruncated>{str(bool(rest)).lower()}</IsTruncated>{more}"
        return Answer(200, f"<ListBucketResult>{shown}{''.join(rows)}</ListBucketResult>".encode())


async def _head(connection: socket.socket, received: bytearray) -> tuple[str, str, dict[str, str]] | None:
    """Receive the head of a request: method, target and fields. Return None at the end of the connection."""
    while (end := received.find(b"\r\n\r\n")) < 0:
        found = await asyncio.get_running_loop().sock_recv(connection, HEAD_BYTES)
        if not found:
            return None
        received += found
    lines = received[:end].decode("latin-1").split("\r\n")
    del received[: end + 4]
    method, target, _ = lines[0].split(" ", 2)
    return (
        method,
        target,
        {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])},
    )


async def _body(connection: socket.socket, received: bytearray, size: int) -> Body | None:
    """Receive the body of a request, and return it. Return None at the end of the connection."""
    body = memoryview(bytearray(size))
    count = min(size, len(received))
    body[:count] = received[:count]
    del received[:count]
    while count < size:
        found = await asyncio.get_running_loop().sock_recv_into(connection, body[count:])
        if not found:
            return None
        count += found
    return body


async def _discard(connection: socket.socket, received: bytearray, size: int) -> Body | None:
    """Receive the body of a request without a copy of it. Return None at the end of the connection."""
    count = min(size, len(received))
    del received[:count]
    while count < size:
        # The kernel wakes this process once so much is there, and discards it.
        wanted = min(size - count, DISCARDED_AT_ONCE)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        await _until_readable(connection)
        found = connection.recv_into(FORGOTTEN, size - count, socket.MSG_TRUNC)
        if not found:
            return None
        count += found
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return FORGOTTEN[:size]


async def _until_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(connection, readable.set_result, None)
    try:
        await readable
    finally:
        loop.remove_reader(connection)


def _read(data: Body, wanted: str) -> Answer:
    """Answer a GET; `wanted` is the header Range, or empty."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
    if found is None:
        return Answer(200, data)
    start = int(found[1])
    end = min(int(found[2]) + 1, len(data)) if found[2] else len(data)
    if start >= len(data):
        return Answer(416, b"<Error><Code>InvalidRange</Code></Error>")
    return Answer(206, memoryview(data)[start:end], {"content-range": f"bytes {start}-{end - 1}/{len(data)}"})


if __name__ == "__main__":
    store = SlowStore(float(sys.argv[2]), forgets="--forget" in sys.argv)
    asyncio.run(store.serve(int(sys.argv[1])))
