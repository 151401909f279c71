"""What `make fuzz` runs: a function of bytes for each decoder that bytes from a socket reach, and for the whole core.

A target may only raise the exceptions that it declares. The targets come from the tables of the client protocols and of
the codecs' modules, so the codec of a new request is fuzzed without a change of this module.
"""

import random
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from duolog.bridge import kafka
from duolog.bridge.config import SecurityOptions
from duolog.bridge.records.security import ScramVerifier
from duolog.bridge.security.oauth.key_sets import KeySet
from duolog.bridge.security.oauth.tokens import Tokens
from duolog.bridge.security.scram import LoginFailed, Mechanism, ScramLogin
from duolog.delay.recurring import BadSchedule, Cron
from duolog.protocol import names
from duolog.protocol.convert import to_rocketmq
from duolog.protocol.errors import ProtocolError
from duolog.protocol.framing import FrameReader
from duolog.protocol.kafka import (
    api_messages,
    compression,
    record_batch,
    record_check,
    record_reader,
    record_walk,
)
from duolog.protocol.kafka.record_batch import InvalidBatch
from duolog.protocol.rocketmq import bodies, remoting
from duolog.protocol.rocketmq.bodies import Body
from duolog.protocol.rocketmq.filters import subscription_filter
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.messages import (
    batch,
    message,
    properties,
    recall_handle,
    receipt,
    tags,
)
from duolog.protocol.rocketmq.messages import compression as rocketmq_compression
from duolog.protocol.rocketmq.messages.message_id import parse_message_id
from duolog.protocol.rocketmq.request_headers import REQUESTS
from duolog.store.shared.segments.manifest import decode_manifest
from duolog.store.shared.wal.stream import decode_stream
from duolog.store.shared.wal.wal_object import DamagedObject
from duolog.store.shared.wal.wal_object import decode as decode_wal_object
from tests.fuzz.secured import Secured

Target = Callable[[bytes], object]

_VERIFIER = ScramVerifier(b"salt", 4096, b"stored key", b"server key")
_TOKENS = Tokens(KeySet(lambda: b'{"keys": []}'), SecurityOptions())
INFLATE_BYTES_MAX = 1 << 20
_CRC_AT, _CRC_FROM = 17, 21

_KAFKA_ROWS = [
    (int(row.key), version) for row in kafka.TABLE.values() for version in range(row.min_version, row.max_version + 1)
]
_HEADERS = list({form.__name__: form for form in REQUESTS.values()}.values())
_BODIES = [
    form for form in vars(bodies).values() if isinstance(form, type) and issubclass(form, Body) and form is not Body
]


def framing(sent: bytes) -> None:
    """Frames come out the same however the bytes are split."""
    cut = sent[0] if sent else 0
    try:
        whole = [bytes(frame) for frame in FrameReader(1 << 16).feed(sent)]
    except ProtocolError:
        return
    reader = FrameReader(1 << 16)
    parts = [bytes(frame) for part in (sent[:cut], sent[cut:]) for frame in reader.feed(part)]
    assert parts == whole, "the split changed the frames"


def kafka_request(sent: bytes) -> None:
    if len(sent) < 2:
        return
    key, version = _KAFKA_ROWS[int.from_bytes(sent[:2], "big") % len(_KAFKA_ROWS)]
    try:
        api_messages.decode_header(struct.pack(">hh", key, version) + sent[2:])
        api_messages.decode_request(key, version, sent[2:])
    except ProtocolError:
        pass


def kafka_batch(sent: bytes) -> None:
    """A batch whose size and CRC are right, whatever else it says: checked, then read."""
    if len(sent) < 61:
        return
    whole = bytearray(sent)
    struct.pack_into(">i", whole, 8, len(whole) - 12)
    whole[16] = 2
    struct.pack_into(">I", whole, _CRC_AT, record_batch.crc32c(bytes(whole[_CRC_FROM:])))
    try:
        record_batch.check(whole)
        for record in record_reader.records(whole, INFLATE_BYTES_MAX):
            to_rocketmq.properties_of(record)
    except (ProtocolError, InvalidBatch):
        pass


def kafka_records(sent: bytes) -> None:
    """The records of a batch: the walk in C gives the same as the one in Python, and what passes can be read."""
    if not sent:
        return
    count, limit, names = sent[0], 100, (b"TIMER_", b"T")
    found = record_check.walk(sent, 1, count, limit, names)
    assert found == record_walk.walk(sent, 1, count, limit, names), "C and Python differ"
    if len(found) == 5 and count:
        header = record_batch.BatchHeader(0, 0, 0, 2, 0, 0, count - 1, 0, 0, -1, -1, -1, count)
        record_reader.read_records(record_reader.OpenBatch(header, sent[1:]), record_reader.FIRST, count)


def kafka_compression(sent: bytes) -> None:
    if sent:
        try:
            compression.inflate(sent[0] % 5, sent[1:], INFLATE_BYTES_MAX)
        except ProtocolError:
            pass


def rocketmq_command(sent: bytes) -> None:
    try:
        command = remoting.decode(memoryview(sent))
    except ProtocolError:
        return
    remoting.encode(command)


def rocketmq_header(sent: bytes) -> None:
    """A header's fields: the first byte names the form, the rest are `name=value` lines."""
    if not sent:
        return
    lines = sent[1:].decode("utf-8", "replace").split("\n")
    ext = dict(line.partition("=")[::2] for line in lines)
    form = _HEADERS[sent[0] % len(_HEADERS)]
    fields = msgspec.structs.fields(form)
    positional = {field.encode_name: value for field, value in zip(fields, lines, strict=False)}
    for given in (ext, positional):
        try:
            form.parse(given)
        except ProtocolError:
            pass


def rocketmq_json(sent: bytes) -> None:
    if sent:
        try:
            fastjson.read(sent[1:], _BODIES[sent[0] % len(_BODIES)])
        except ProtocolError:
            pass


def rocketmq_message(sent: bytes) -> None:
    try:
        for found in message.decode_all(sent):
            message.is_body_intact(found)
            properties.parse(found.properties)
            rocketmq_compression.inflate_body(found.body, found.sys_flag, INFLATE_BYTES_MAX)
    except ProtocolError:
        pass


def rocketmq_batch(sent: bytes) -> None:
    try:
        for part in batch.decode(sent, 1_000):
            properties.parse(part.properties)
    except ProtocolError:
        pass


def rocketmq_properties(sent: bytes) -> None:
    try:
        properties.parse(sent)
        properties.get(sent, "KEYS")
        properties.without(sent, "TRAN_MSG")
        properties.set_many(sent, {"KEYS": "k", "TAGS": None})
    except ProtocolError:
        pass


def rocketmq_compression_of_bodies(sent: bytes) -> None:
    if sent:
        try:
            rocketmq_compression.inflate_body(sent[1:], 1 | (sent[0] & 3) << 8, INFLATE_BYTES_MAX)
        except ProtocolError:
            pass


def rocketmq_filter(sent: bytes) -> None:
    """A subscription's expression, compiled and asked about one message."""
    text = sent[1:].decode("utf-8", "replace")
    try:
        wanted = subscription_filter.filter_of("SQL92" if sent[:1] < b"\x80" else "TAG", text)
        tags.parse_expression(text)
        if isinstance(wanted, subscription_filter.SqlFilter):
            wanted.wants(b"TAGS\x01paid\x02a\x0117\x02KEYS\x01k\x02")
    except ProtocolError:
        pass


def rocketmq_texts(sent: bytes) -> None:
    """Texts that name a message, a popped one, a timer; and names of topics and groups, both ways."""
    text = sent.decode("utf-8", "replace")
    for parse in (parse_message_id, receipt.parse_receipt, recall_handle.decode):
        try:
            parse(text)
        except ProtocolError:
            pass
    names.kafka_name(text)
    names.rocketmq_name(text)
    names.rocketmq_group(text)


def cron(sent: bytes) -> None:
    try:
        Cron(sent.decode("utf-8", "replace"), "UTC").first_ms(1_700_000_000_000)
    except BadSchedule:
        pass


def login(sent: bytes) -> None:
    """The tokens of SCRAM, of which the broker knows all but the password, and a bearer token."""
    first, _, final = sent[1:].partition(b"\xff")
    mechanism = Mechanism.SHA_256 if sent[:1] < b"\x80" else Mechanism.SHA_512
    scram = ScramLogin(mechanism, lambda name: _VERIFIER, b"server nonce")
    with suppress(ProtocolError, LoginFailed):
        scram.first(first)
        scram.final(final)
        raise AssertionError("a login without the password")
    found = _TOKENS.check(sent.decode("latin-1"), 0, 0)
    assert isinstance(found, LoginFailed), "a token without a key"


class Core:
    """The whole core: the first byte names the wire, the rest is what the socket gives, in two parts."""

    def __init__(self) -> None:
        self._world: Any = None

    def __call__(self, sent: bytes) -> None:
        from tests.unit.adversary.world import World  # Here, because the other targets need none of it.

        if len(sent) < 2:
            return
        if self._world is None or self._world.requests > 2_000:
            self._world = World(random.Random(0).getrandbits(32), counts_calls=False)
        world = self._world
        attacker = world.kafka() if sent[0] & 1 else world.rocketmq()
        if sent[0] & 1:
            key, version = _KAFKA_ROWS[sent[1] % len(_KAFKA_ROWS)]
            payload = struct.pack(">hhih", key, version, 1, -1) + sent[2:]
        else:
            payload = sent[2:]
        attacker.send(payload, "fuzz", is_answered=False)
        world.end(attacker)
        assert not world.findings, "\n".join(map(str, world.findings))


class Tls:
    """A port with TLS before the login: the first byte names the stage, the rest is what the socket gives, in parts."""

    def __init__(self) -> None:
        self._bench: Any = None
        self._hello = b""

    def __call__(self, sent: bytes) -> None:
        if len(sent) < 3:
            return
        if self._bench is None:
            self._begin()
        bench, stage, cut, rest = self._bench, sent[0] % 4, sent[1], sent[2:]
        client = bench.connect()
        if stage == 1:
            rest = b"\x16\x03\x01" + rest
        elif stage == 2:
            rest = self._hello[:cut] + rest
        elif stage == 3:
            client.shake()
            rest = b"\x17\x03\x03" + rest
        for part in (rest[:cut], rest[cut:]):
            if part and not client.transport.closing:
                client.transport.receive(part)
                bench.loop.turn()
        received = b"".join(each.data for each in bench.connected)
        is_plain = stage != 3 and rest[0] != 0x16
        assert received == (rest if is_plain else b""), "bytes without a valid record were received"
        client.transport.abort()
        bench.loop.turn()
        bench.connected.clear()
        sums = bench.server.tls_counts.unfinished, len(bench.server.connections), bench.server.connections.request_bytes
        assert sums == (0, 0, 0), "something of a closed connection is still counted"

    def _begin(self) -> None:
        from tests.kit.certificates import Authority  # Here, because the other targets need none of it.
        from tests.unit.bridge.net.tls.bench import TlsBench

        with tempfile.TemporaryDirectory() as folder:
            self._bench = TlsBench(Authority(Path(folder)), client_auth="request")
        client = self._bench.connect()
        self._hello = client.hello()
        client.transport.abort()
        self._bench.loop.turn()


def shared_objects(sent: bytes) -> None:
    """Objects of the shared log: another program may write to the bucket."""
    for decoder in (decode_wal_object, decode_manifest):
        with suppress(DamagedObject):
            decoder(sent, 7)
    with suppress(DamagedObject):
        decode_stream(sent)


TARGETS: Final[dict[str, Target]] = {
    each.__name__: each
    for each in (
        framing, kafka_request, kafka_batch, kafka_records, kafka_compression, rocketmq_command, rocketmq_header,
        rocketmq_json, rocketmq_message, rocketmq_batch, rocketmq_properties, rocketmq_compression_of_bodies,
        rocketmq_filter, rocketmq_texts, cron, shared_objects, login,
    )
} | {"tls": Tls(), "core": Core(), "secured": Secured()}  # fmt: skip
