"""The checksum of one record. The broker computes it with this module, Spark with `spark/checksums.py`.

    CRC-32 (zlib) of   offset,timestamp,key size,value size,header count,   as decimal text, sizes -1 for null
                       key | value | for each header   name size,value size,  name | value

The checksum of a range of records is the sum of the records' checksums, so it does not depend on their order.
"""

import zlib

from duolog.protocol.kafka.record_batch import Record


def record_checksum(record: Record) -> int:
    """Return the checksum of a record as a Kafka consumer receives it."""
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
