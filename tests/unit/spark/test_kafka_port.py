"""A job decodes Metadata responses, and refuses anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.api_messages import (
    NO_THROTTLE,
    ErrorCode,
    encode_response,
    response_types,
)
from duolog.protocol.kafka.primitive_types import MALFORMED
from duolog.spark.kafka_port import KafkaPortError, _addresses, read_metadata

METADATA, VERSION = 3, 4


def answer(topics: dict[str, int]) -> bytes:
    """Encode an answer of a cluster of two; every topic without an error has two partitions."""
    types = response_types(METADATA, VERSION)
    partition = {"error_code": ErrorCode.none, "leader_id": 1, "replica_nodes": (1, 2), "isr_nodes": (1,)}
    partitions = tuple(types.MetadataResponsePartition(partition_index=at, **partition) for at in range(2))
    response = types.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=tuple(
            types.MetadataResponseBroker(node_id=at, host=f"h{at}", port=9092 + at, rack=None) for at in range(2)
        ),
        cluster_id="c",
        controller_id=1,
        topics=tuple(
            types.MetadataResponseTopic(
                error_code=ErrorCode(error), name=name, is_internal=False, partitions=() if error else partitions
            )
            for name, error in topics.items()
        ),
    )
    return b"".join(encode_response(METADATA, VERSION, 1, response))[4:]


def test_answer_is_read_to_its_end() -> None:
    found = read_metadata(answer({"orders": 0, "nope": 3, "late": 0}))
    assert found.brokers == [("h0", 9092), ("h1", 9093)]
    assert found.errors == {"orders": 0, "nope": 3, "late": 0}


@given(st.binary(max_size=200), st.integers(0, 120))
def test_what_is_no_answer_is_refused(garbage: bytes, cut: int) -> None:
    whole = answer({"orders": 0, "nope": 3})
    for content in (garbage, whole[: cut % len(whole)], whole[: cut % len(whole)] + garbage):
        try:
            read_metadata(content)
        except (ProtocolError, *MALFORMED):
            pass


@pytest.mark.parametrize("address", ["9092", "host", "host:", ":9092", "host:0", "host:65536", "a:1,b", "host:-1"])
def test_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(KafkaPortError, match="--kafka: expected HOST:PORT"):
        _addresses(address)


def test_several_addresses_are_read() -> None:
    assert _addresses("a:1, [::1]:9092") == [("a", 1), ("::1", 9092)]
