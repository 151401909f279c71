"""Text of any length is answered in every version: what a newer one can spell must not be too long for an older one.

Every version of every API is asked with text that is as long as it can spell, the newest first, so that what these
leave behind is what the older ones read. A text that does not fit into an answer ends the broker.
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
from tests.unit.bridge.kafka.filled import DURATION_MS, filled

VERSIONS = [(api.key, v) for api in TABLE.values() for v in range(api.max_version, api.min_version - 1, -1)]
TEXT_BYTES_MAX = (1 << 15) - 1


@pytest.fixture(scope="module")
def bench() -> KafkaBench:
    bench = KafkaBench()
    bench.topic("orders")
    return bench


@pytest.mark.parametrize("letter", ["g", "\x01"], ids=["plain", "longer when quoted"])
@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=lambda value: getattr(value, "name", str(value)))
def test_long_text_is_answered(bench: KafkaBench, key: ApiKey, version: int, letter: str) -> None:
    text = letter * TEXT_BYTES_MAX
    ask(bench, key, version, filled(load_request_schema(key, version), text))


@pytest.mark.parametrize("field", ["group_id", "protocol_type", "group_instance_id", "protocols", "client_id"])
def test_members_with_long_names_are_described_in_every_version(bench: KafkaBench, field: str) -> None:
    schema = load_request_schema(ApiKey.JOIN_GROUP, 9)
    long = filled(schema, "n" * TEXT_BYTES_MAX)
    group_id = f"with long {field}"
    given = {"group_id": group_id, "member_id": "", "group_instance_id": group_id}
    if field == "client_id":
        schema = load_request_schema(ApiKey.JOIN_GROUP, 3)
        ask(bench, ApiKey.JOIN_GROUP, 3, filled(schema, "g", **given), "c" * TEXT_BYTES_MAX)
    else:
        ask(bench, ApiKey.JOIN_GROUP, 9, filled(schema, "g", **given | {field: getattr(long, field)}))
    for version in range(6):
        schema = load_request_schema(ApiKey.DESCRIBE_GROUPS, version)
        ask(bench, ApiKey.DESCRIBE_GROUPS, version, filled(schema, group_id))


def ask(bench: KafkaBench, key: ApiKey, version: int, entity: Any, client_id: str = "c") -> None:
    """Send a request and see it answered, at once or in time; an exception would be one of the handler's."""
    body = io.BytesIO()
    entity_writer(type(entity))(body, entity)
    name = client_id.encode()
    tags = b"\0" if is_flexible(key, version) else b""
    frame = struct.pack(">hhih", key, version, 1, len(name)) + name + tags + body.getvalue()
    client = bench.connect()
    client.connection.data_received(struct.pack(">i", len(frame)) + frame)
    bench.settle()
    if not client.transport.taken:
        bench.pass_ms(DURATION_MS // 2)
    assert client.transport.taken or client.is_closed
