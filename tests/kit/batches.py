"""Kafka batches with arbitrary bytes as their records and a valid checksum, so that the checks of records see them."""

import struct

from crc32c import crc32c

from duolog.protocol.kafka.compression import Codec, deflate

NOW = 1_700_000_000_000
RECORD = b"\x0c\0\0\0\x01\x01\0"  # Size 6: deltas of 0, null key, null value, no headers.
SECOND = b"\x0c\0\0\x02\x01\x01\0"


def batch_of(body: bytes, count: int, last_offset_delta: int, codec: int = 0, **fields: int) -> bytes:
    """Return a batch with a valid checksum and `body` as its records."""
    signed = struct.pack(
        ">hiqqqhii",
        codec | fields.get("attributes", 0),
        last_offset_delta,
        fields.get("base_timestamp", NOW),
        fields.get("max_timestamp", NOW),
        *(-1, -1, -1),
        count,
    )
    signed += deflate(codec, body) if codec in tuple(Codec) else body
    return struct.pack(">qiibI", 0, len(signed) + 9, 0, 2, crc32c(signed)) + signed
