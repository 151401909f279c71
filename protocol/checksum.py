"""The checksum of one record, the same wherever it is computed: here, or in Spark by column expressions.

    CRC-32 (zlib) of   offset,timestamp,key size,value size,header count,   as decimal text, sizes -1 for null
                       key | value | for each header   name size,value size,  name | value

A range of records has the sum of its records' checksums: the order does not matter, so a reader that gets them in any
order can add them up.
"""

import zlib

from duolog.protocol.kafka.record_batch import Record


def record_checksum(record: Record) -> int:
    """Compute the checksum of a record as Kafka's readers see it."""
    offset, timestamp_ms, key, value, headers = record
    parts = [
        b"%d,%d,%d,%d,%d," % (offset, timestamp_ms, _size(key), _size(value), len(headers)),
        key or b"",
        value or b"",
    ]
    for name, content in headers:
        encoded = name.encode()
        parts += (b"%d,%d," % (len(encoded), _size(content)), encoded, content or b"")
    return zlib.crc32(b"".join(parts))


def _size(content: bytes | None) -> int:
    return -1 if content is None else len(content)
