"""The checksum of a record (`protocol/checksum.py`) as a column expression over rows of `messages` or of an archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column


def record_checksum() -> Column:
    """Return the column with the checksum of each row."""
    headers = F.coalesce("headers", F.array())
    timestamp_ms = F.coalesce(F.unix_millis("timestamp"), F.lit(-1))
    sizes = [F.col("offset"), timestamp_ms, _size(F.col("key")), _size(F.col("body")), F.size(headers)]
    encoded = F.transform(
        headers,
        lambda header: F.concat(
            _text(F.octet_length(header.key), _size(header.value)), header.key.cast("binary"), _bytes(header.value)
        ),
    )
    joined = F.aggregate(encoded, F.lit(b""), lambda all_, one: F.concat(all_, one))
    return F.crc32(F.concat(_text(*sizes), _bytes(F.col("key")), _bytes(F.col("body")), joined))


def _size(content: Column) -> Column:
    return F.coalesce(F.octet_length(content), F.lit(-1))


def _bytes(content: Column) -> Column:
    return F.coalesce(content, F.lit(b""))


def _text(*numbers: Column) -> Column:
    """Return the numbers as decimal text, with a comma after each."""
    return F.concat(*(F.concat(number.cast("string"), F.lit(",")) for number in numbers)).cast("binary")
