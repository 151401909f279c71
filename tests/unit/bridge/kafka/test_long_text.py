"""Text of any length is answered in every version: names that newer versions bring must fit into older answers.

Every version of every API gets requests with the longest text that it can encode, the newest version first, so that the
older versions describe what the newer ones have stored. A text that does not fit into an answer would be a fault.
"""

import io
import struct
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_writer

from duolog.bridge.kafka import TABLE
from duolog.bridge.kafka.groups.coordinator import NAME_CHARACTERS_MAX
from duolog.bridge.kafka.requests.api import KafkaApi
from duolog.protocol.kafka.api_messages import ApiKey, is_flexible
from tests.kit.rows import named_row
from tests.unit.bridge.kafka.bench import KafkaBench
from tests.unit.bridge.kafka.filled import DURATION_MS, filled

TEXT_BYTES_MAX = (1 << 15) - 1


@pytest.fixture(scope="module")
def bench() -> KafkaBench:
    bench = KafkaBench()
    bench.topic("orders")
    return bench


@pytest.mark.parametrize("letter", ["g", "\x01"], ids=["plain", "longer when quoted"])
@pytest.mark.parametrize("api", TABLE.values(), ids=lambda api: api.key.name)
def test_long_text_is_answered(bench: KafkaBench, api: KafkaApi, letter: str) -> None:
    text = letter * TEXT_BYTES_MAX
    for version in range(api.max_version, api.min_version - 1, -1):
        with named_row(version=version):
            ask(bench, api.key, version, filled(load_request_schema(api.key, version), text))


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


@pytest.mark.parametrize("field", ["group_id", "protocol_type", "group_instance_id", "client_id"])
def test_longest_name_that_is_accepted_is_in_the_description_of_its_group(bench: KafkaBench, field: str) -> None:
    name = "n" * NAME_CHARACTERS_MAX
    given = {"group_id": f"the longest {field}", "member_id": "", "group_instance_id": field}
    client_id = name if field == "client_id" else "c"
    if field != "client_id":
        given[field] = name
    ask(bench, ApiKey.JOIN_GROUP, 9, filled(load_request_schema(ApiKey.JOIN_GROUP, 9), "g", **given), client_id)
    for version in range(6):
        schema = load_request_schema(ApiKey.DESCRIBE_GROUPS, version)
        assert name.encode() in ask(bench, ApiKey.DESCRIBE_GROUPS, version, filled(schema, given["group_id"]))
    assert bench.kafka_groups.has_members(given["group_id"])


def ask(bench: KafkaBench, key: ApiKey, version: int, entity: Any, client_id: str = "c") -> bytes:
    """Send a request and return its answer, which comes at once or in time; empty: the connection was closed."""
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
    return bytes(client.transport.taken)
