"""Frames for tests: Kafka batches and RocketMQ records as their producers write them."""

from collections.abc import Sequence

from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.compression import Codec
from duolog.protocol.kafka.record_batch import Header


def batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Header] = (),
    timestamp_ms: int = 1_700_000_000_000,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    is_transactional: bool = False,
) -> bytes:
    """One batch of a client: base offset 0, timestamps one apart."""
    builder = BatchBuilder()
    for index, value in enumerate(values):
        builder.append(index, timestamp_ms + index, keys[index] if keys else None, value, headers)
    return builder.finish(0, -1, codec=codec, producer=producer, is_transactional=is_transactional)
