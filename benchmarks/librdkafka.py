"""Loads by librdkafka itself: the library inside confluent-kafka, called for a thousand messages at a time.

A Python object per message would be the brake of every measurement on two cores. So messages go in through
`rd_kafka_produce_batch`, out through `rd_kafka_consume_callback_queue` with a callback in C that does nothing, and
Python only counts. Client settings are librdkafka's own, but for those that an argument names.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p, create_string_buffer
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import confluent_kafka

CALL_MESSAGES = 1000
WAITING_MESSAGES_MAX = 100_000  # librdkafka's own `queue.buffering.max.messages`.
ANY_PARTITION = -1
FROM_BEGINNING = -2
COPY = 2  # RD_KAFKA_MSG_F_COPY
PRODUCER, CONSUMER = 0, 1
CONF_OK = 0
FLUSH_WITHIN_MS = 30_000

# At their defaults librdkafka's consumer waits a second whenever its local queue is full, and stalls on fast topics.
CONSUMER_SETTINGS = {"queued.min.messages": "1000000", "fetch.queue.backoff.ms": "1"}

QUIET = {"log_level": "4"}  # Warnings and worse.


PLAIN: Mapping[str, str] = MappingProxyType({})  # Settings of a client without TLS.


class LoadError(Exception):
    """The load did not end in order."""


class Ran(NamedTuple):
    """The result of a load, with its own times."""

    messages: int
    seconds: float


def produce(
    bootstrap: str,
    topic: str,
    size: int,
    *,
    seconds: float = 0,
    count: int = 0,
    codec: str = "none",
    partitions: int = 0,
    security: Mapping[str, str] = PLAIN,
) -> Ran:
    """Send for some seconds, or some messages; return when all are acknowledged.

    With `partitions`, each thousand messages goes to the next one of them. Without, librdkafka chooses one at random
    for 10 ms, so that at a high rate the partitions get as many messages only over minutes.
    """
    with _Client(PRODUCER, {"bootstrap.servers": bootstrap, "compression.codec": codec, **security}) as client:
        destination = client.topic(topic)
        bodies = _bodies(size)
        messages = _messages(bodies, size)
        limit = count or 1 << 62
        sent = 0
        start = time.perf_counter()
        until = start + (seconds or 3600)
        while sent < limit and time.perf_counter() < until:
            if _lib.rd_kafka_outq_len(client.handle) > WAITING_MESSAGES_MAX - CALL_MESSAGES:
                _lib.rd_kafka_poll(client.handle, 1)
                continue
            size_now = min(CALL_MESSAGES, limit - sent)
            partition = sent // CALL_MESSAGES % partitions if partitions else ANY_PARTITION
            done = _lib.rd_kafka_produce_batch(destination, partition, COPY, messages, size_now)
            if done != size_now:
                raise LoadError(f"librdkafka took {done} of {size_now} messages: error {messages[done].err}")
            sent += done
        if _lib.rd_kafka_flush(client.handle, FLUSH_WITHIN_MS):
            raise LoadError(f"not acknowledged within {FLUSH_WITHIN_MS} ms")
        elapsed = time.perf_counter() - start
        client.check()
        return Ran(sent, elapsed)


def consume(
    bootstrap: str,
    topic: str,
    partitions: int,
    count: int,
    *,
    within_s: float = 120,
    security: Mapping[str, str] = PLAIN,
) -> Ran:
    """Read messages of all partitions from their beginning; the time starts with the first ones.

    Before these, librdkafka takes some tenths of a second to find the leaders of the partitions.
    """
    conf = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": "false", **security}
    with _Client(CONSUMER, conf | CONSUMER_SETTINGS) as client:
        queue = client.assign(topic, partitions)
        got = first = 0
        start = time.perf_counter()
        until = start + within_s
        while got < count:
            found = _lib.rd_kafka_consume_callback_queue(queue, 100, _IGNORE, None)
            if found < 0:
                raise LoadError(f"librdkafka could not consume: error {found}")
            got += found
            now = time.perf_counter()
            if not first:
                first, start = got, now
            if now > until:
                raise LoadError(f"got {got} of {count} messages within {within_s} s")
        elapsed = time.perf_counter() - start
        _lib.rd_kafka_queue_destroy(queue)
        return Ran(got - first, elapsed)


# -- The library


class _Message(ctypes.Structure):
    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


def _bodies(size: int) -> ctypes.Array[ctypes.c_char]:
    """Return the bodies of CALL_MESSAGES messages: random hexadecimal text, which compresses to half its size."""
    text = random.Random(size).randbytes(size * CALL_MESSAGES // 2 + 1).hex().encode()
    return create_string_buffer(text, len(text))


def _messages(bodies: ctypes.Array[ctypes.c_char], size: int) -> ctypes.Array[_Message]:
    """Return an array of messages that point to their bodies; the caller must keep `bodies` as long as the array."""
    start = ctypes.addressof(bodies)
    messages = (_Message * CALL_MESSAGES)()
    for number, message in enumerate(messages):
        message.payload, message.len = start + number * size, size
    return messages


class _Client:
    """One handle of librdkafka, closed at the end."""

    def __init__(self, kind: int, settings: dict[str, str]) -> None:
        self._kind = kind
        self._error = ""
        self._topics: list[int] = []
        why = create_string_buffer(512)
        conf = _lib.rd_kafka_conf_new()
        for name, value in (settings | QUIET).items():
            if _lib.rd_kafka_conf_set(conf, name.encode(), str(value).encode(), why, len(why)) != CONF_OK:
                raise LoadError(why.value.decode())
        if kind == PRODUCER:
            # Reports of errors only, so that no callback runs in Python while all goes well.
            _lib.rd_kafka_conf_set(conf, b"delivery.report.only.error", b"true", why, len(why))
            self._on_report = _REPORT(self._note_error)
            _lib.rd_kafka_conf_set_dr_msg_cb(conf, self._on_report)
        self.handle = _lib.rd_kafka_new(kind, conf, why, len(why))
        if not self.handle:
            raise LoadError(why.value.decode())

    def topic(self, name: str) -> int:
        self._topics.append(_lib.rd_kafka_topic_new(self.handle, name.encode(), None))
        return self._topics[-1]

    def assign(self, topic: str, partitions: int) -> int:
        """Read these partitions from their beginning; return the queue with the messages."""
        wanted = _lib.rd_kafka_topic_partition_list_new(partitions)
        for partition in range(partitions):
            _lib.rd_kafka_topic_partition_list_add(wanted, topic.encode(), partition)
            _lib.rd_kafka_topic_partition_list_set_offset(wanted, topic.encode(), partition, FROM_BEGINNING)
        queue: int = _lib.rd_kafka_queue_get_consumer(self.handle)
        error = _lib.rd_kafka_assign(self.handle, wanted)
        _lib.rd_kafka_topic_partition_list_destroy(wanted)
        if error:
            raise LoadError(f"librdkafka could not assign {topic}: error {error}")
        return queue

    def check(self) -> None:
        if self._error:
            raise LoadError(self._error)

    def _note_error(self, handle: int, message: Any, opaque: int) -> None:
        self._error = f"a message was not delivered: error {message.contents.err}"

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        for topic in self._topics:
            _lib.rd_kafka_topic_destroy(topic)
        if self._kind == CONSUMER:
            _lib.rd_kafka_consumer_close(self.handle)
        _lib.rd_kafka_destroy(self.handle)


_REPORT = ctypes.CFUNCTYPE(None, c_void_p, ctypes.POINTER(_Message), c_void_p)


def _load() -> Any:
    package = Path(confluent_kafka.__file__).parent
    bundled = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")]
    lib = ctypes.CDLL(str(bundled[0]) if bundled else "librdkafka.so.1")
    for name, result, arguments in (
        ("conf_new", c_void_p, []),
        ("conf_set", c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
        ("conf_set_dr_msg_cb", None, [c_void_p, _REPORT]),
        ("new", c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
        ("destroy", None, [c_void_p]),
        ("topic_new", c_void_p, [c_void_p, c_char_p, c_void_p]),
        ("topic_destroy", None, [c_void_p]),
        ("produce_batch", c_int, [c_void_p, c_int32, c_int, c_void_p, c_int]),
        ("outq_len", c_int, [c_void_p]),
        ("poll", c_int, [c_void_p, c_int]),
        ("flush", c_int, [c_void_p, c_int]),
        ("topic_partition_list_new", c_void_p, [c_int]),
        ("topic_partition_list_add", c_void_p, [c_void_p, c_char_p, c_int32]),
        ("topic_partition_list_set_offset", c_int, [c_void_p, c_char_p, c_int32, c_int64]),
        ("topic_partition_list_destroy", None, [c_void_p]),
        ("assign", c_int, [c_void_p, c_void_p]),
        ("queue_get_consumer", c_void_p, [c_void_p]),
        ("queue_destroy", None, [c_void_p]),
        ("consume_callback_queue", c_int, [c_void_p, c_int, c_void_p, c_void_p]),
        ("consumer_close", c_int, [c_void_p]),
    ):
        function = getattr(lib, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return lib


_lib = _load()

# A C function that takes a message and does nothing: a consume callback without cost.
_IGNORE = ctypes.cast(_lib.rd_kafka_message_errstr, c_void_p)
