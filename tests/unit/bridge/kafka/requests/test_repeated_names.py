"""Names that a request repeats count once: its answer does not grow with them, in any API and version.

Requests are filled from the schemas, with the same element in each array again and again.
"""

import io
import struct
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_writer

from duolog.bridge.kafka import TABLE
from duolog.protocol.kafka.api_messages import ApiKey, is_flexible
from tests.unit.bridge.kafka.bench import KafkaBench
from tests.unit.bridge.kafka.filled import filled

# What is repeated in these are things of their own: batches, and descriptions without a name.
OTHERS = (ApiKey.PRODUCE, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS)
VERSIONS = [
    (api.key, version)
    for api in TABLE.values()
    if api.key not in OTHERS
    for version in sorted({api.min_version, api.max_version, 8} & {*range(api.min_version, api.max_version + 1)})
]
MESSAGE_DIFFERENCE = 4  # An error message may say how often a topic is named, each of two topics in two arrays.


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=lambda value: getattr(value, "name", str(value)))
def test_answer_does_not_grow_with_names_that_are_repeated(key: ApiKey, version: int) -> None:
    few, many = (len(answered(key, version, copies)) for copies in (2, 12))
    assert many <= few + MESSAGE_DIFFERENCE


def answered(key: ApiKey, version: int, copies: int) -> bytes:
    bench = KafkaBench()
    bench.topic("orders", 4)
    entity: Any = filled(load_request_schema(key, version), "orders", copies=copies)
    body = io.BytesIO()
    entity_writer(type(entity))(body, entity)
    frame = struct.pack(">hhih", key, version, 1, 1) + b"c" + (b"\0" if is_flexible(key, version) else b"")
    frame += body.getvalue()
    client = bench.connect()
    client.connection.data_received(struct.pack(">i", len(frame)) + frame)
    bench.settle()
    bench.pass_ms(20_000)
    return bytes(client.transport.taken)
