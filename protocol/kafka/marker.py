"""Transaction markers: the control batches with which a broker ends a producer's transaction in a partition.

    batch     one record, transactional and control, producer id and epoch of the transaction, base sequence -1
    key       version i16 = 0 | type i16: 0 abort, 1 commit
    value     version i16 = 0 | coordinator_epoch i32

A marker takes one offset. Consumers skip it. Kafka's tools require a complete value.
Source: Kafka's `ControlRecordType.java`, `EndTransactionMarker.java`.
"""

import struct
from typing import Final

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.compression import Buffer
from duolog.protocol.kafka.record_batch import ATTRIBUTES_AT, CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION: Final = 0
_ABORT, _COMMIT = 0, 1
# The key begins after the record's size, attributes, timestamp delta, offset delta and key size, one byte each.
_KEY_AT: Final = HEADER_BYTES + 5


def build(
    base_offset: int, leader_epoch: int, timestamp_ms: int, producer_id: int, producer_epoch: int, *, is_commit: bool
) -> bytearray:
    """Encode a marker with this base offset. Its coordinator epoch is 0, because there is only one coordinator."""
    builder = BatchBuilder()
    builder.append(0, timestamp_ms, _KEY.pack(_VERSION, _COMMIT if is_commit else _ABORT), _VALUE.pack(_VERSION, 0))
    producer = producer_id, producer_epoch, -1
    return builder.finish(base_offset, leader_epoch, producer=producer, is_transactional=True, is_control=True)


def is_transactional(batch: Buffer) -> bool:
    """Return whether a batch belongs to a transaction or is a marker."""
    return bool(batch[ATTRIBUTES_AT] & TRANSACTIONAL_BIT)


def is_marker(batch: Buffer) -> bool:
    """Return whether a batch is a control batch, and thus a marker."""
    return bool(batch[ATTRIBUTES_AT] & CONTROL_BIT)


def is_commit(batch: Buffer) -> bool:
    """Return whether a marker commits its transaction; false if it aborts it. Raises ProtocolError for other types."""
    try:
        version, kind = _KEY.unpack_from(batch, _KEY_AT)
    except struct.error:
        raise ProtocolError(f"the control batch has {len(batch)} bytes, which is too short for a marker") from None
    if version != _VERSION or kind not in (_ABORT, _COMMIT):
        raise ProtocolError(f"the control record has version {version} and type {kind}, which are unknown")
    return bool(kind == _COMMIT)
