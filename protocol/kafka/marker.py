"""Transaction markers: the control batches by which a broker ends a producer's transaction in a partition.

    batch     one record, transactional and control, producer id and epoch of the transaction, base sequence -1
    key       version i16 = 0 | type i16: 0 abort, 1 commit
    value     version i16 = 0 | coordinator_epoch i32

Java's brokers and tools want the value to be whole. A marker takes one offset; no client shows it to its user.
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
_KEY_AT: Final = HEADER_BYTES + 5  # behind the record's size, attributes, both deltas and the key's size, a byte each


def build(
    base_offset: int, leader_epoch: int, timestamp_ms: int, producer_id: int, producer_epoch: int, *, is_commit: bool
) -> bytearray:
    """Build the marker that lies at `base_offset`; the coordinator's epoch is 0, for there is never another one."""
    builder = BatchBuilder()
    builder.append(0, timestamp_ms, _KEY.pack(_VERSION, _COMMIT if is_commit else _ABORT), _VALUE.pack(_VERSION, 0))
    producer = producer_id, producer_epoch, -1
    return builder.finish(base_offset, leader_epoch, producer=producer, is_transactional=True, is_control=True)


def is_transactional(batch: Buffer) -> bool:
    """Tell whether the batch belongs to a transaction, or ends one."""
    return bool(batch[ATTRIBUTES_AT] & TRANSACTIONAL_BIT)


def is_marker(batch: Buffer) -> bool:
    return bool(batch[ATTRIBUTES_AT] & CONTROL_BIT)


def is_commit(batch: Buffer) -> bool:
    """Tell which marker it is. Raises ProtocolError if it is of another kind."""
    try:
        version, kind = _KEY.unpack_from(batch, _KEY_AT)
    except struct.error:
        raise ProtocolError(f"control batch of {len(batch)} bytes") from None
    if version != _VERSION or kind not in (_ABORT, _COMMIT):
        raise ProtocolError(f"control record of version {version} and type {kind}")
    return bool(kind == _COMMIT)
