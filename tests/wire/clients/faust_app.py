"""A Faust application for each role that a test needs, to be run as a process of its own: it speaks JSON lines.

    faust_app.py ID BOOTSTRAP read TOPIC...          prints every event
    faust_app.py ID BOOTSTRAP write TOPIC MESSAGES   sends what the file MESSAGES has, prints where each went, and ends
    faust_app.py ID BOOTSTRAP count TOPIC OUTPUT     counts keys in a table with a changelog; prints the table once it
                                                     is recovered, then each new count; sends them to OUTPUT
    faust_app.py ID BOOTSTRAP count_once TOPIC OUTPUT  the same, exactly once
    faust_app.py ID BOOTSTRAP count_in_one_transaction TOPIC OUTPUT  the same, and it never commits

State is in memory only, so that a restart recovers all of it from the changelog.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import faust
from faust.types import EventT, StreamT

REQUEST_BYTES_MAX = 8 << 20
COMMIT_INTERVAL_S = 0.5
NEVER_S = 3600.0
EXACTLY_ONCE = ("count_once", "count_in_one_transaction")


def main() -> None:
    app_id, bootstrap, role, *arguments = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parents[3]))  # The project's root: for tests.wire.clients.message.
    app = faust.App(
        app_id,
        broker=f"kafka://{bootstrap}",
        store="memory://",
        datadir=tempfile.mkdtemp(prefix="duolog-faust-"),
        topic_partitions=4,  # The changelog's; it must be that of the topic that the table counts.
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=REQUEST_BYTES_MAX,
        producer_max_request_size=REQUEST_BYTES_MAX,
        broker_commit_interval=NEVER_S if role == "count_in_one_transaction" else COMMIT_INTERVAL_S,
        broker_session_timeout=6.0,  # A worker that was killed is not waited for much longer.
        broker_rebalance_timeout=6.0,
        broker_heartbeat_interval=1.0,
        web_enabled=False,
        processing_guarantee="exactly_once" if role in EXACTLY_ONCE else "at_least_once",
    )
    {"read": read, "write": write}.get(role, count)(app, *arguments)
    sys.argv = [sys.argv[0], "worker", "-l", "warn", "--without-web"]
    app.main()


def say(**line: Any) -> None:
    sys.__stdout__.write(json.dumps(line) + "\n")
    sys.__stdout__.flush()


def read(app: faust.App, *names: str) -> None:
    from tests.wire.clients.message import HEAD_BYTES, encode, fingerprint

    topics = app.topic(*names, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")

    @app.agent(topics)
    async def every(stream: StreamT[bytes]) -> None:
        event: EventT[bytes]
        async for event in stream.events():
            message = event.message
            headers = message.headers.items() if hasattr(message.headers, "items") else message.headers or ()
            say(
                topic=message.topic,
                queue=message.partition,
                offset=message.offset,
                key=encode(message.key),
                fingerprint=fingerprint(message.value),
                head=encode((message.value or b"")[:HEAD_BYTES]),
                headers=[{"name": name, "value": encode(value)} for name, value in headers],
                timestamp_ms=round(message.timestamp * 1000),
            )


def write(app: faust.App, name: str, messages: str) -> None:
    from tests.wire.clients.message import decode

    topic = app.topic(name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
    to_send = json.loads(Path(messages).read_text())

    @app.task
    async def send() -> None:
        for each in to_send:
            timestamp = None if each["timestamp_ms"] is None else each["timestamp_ms"] / 1000
            sent = await topic.send(
                key=decode(each["key"]),
                value=decode(each["body"]),
                partition=each["queue"],
                timestamp=timestamp,
                headers=[(header["name"], decode(header["value"])) for header in each["headers"]],
            )
            stored = await sent
            say(queue=stored.partition, offset=stored.offset)
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(app.stop()))


def count(app: faust.App, name: str, output: str) -> None:
    words = app.topic(name, key_type=str, value_type=bytes, key_serializer="raw", value_serializer="raw")
    counts = app.topic(output, key_type=str, value_type=int)
    table = app.Table("seen", default=int)

    @app.task
    async def tell_recovered() -> None:
        await app.tables.recovery.completed.wait()
        say(recovered=dict(table))

    @app.agent(words)
    async def each_key(stream: StreamT[bytes]) -> None:
        async for key, _value in stream.items():  # noqa: PERF102 (a stream has no keys())
            table[key] += 1
            await counts.send(key=key, value=table[key])
            say(key=key, count=table[key])


if __name__ == "__main__":
    main()
