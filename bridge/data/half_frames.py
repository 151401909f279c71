"""The half messages of Kafka producers: their headers, their stored frames, and the records that a commit delivers.

    TRAN_MSG_ID                     The producer's own id, unique within its topic. It makes a record a half message.
    TRAN_MSG_CHECK_URL              The URL for check-backs, which `txn.check_urls` must allow. Without it the broker
                                    sends no check-back.
    CHECK_IMMUNITY_TIME_IN_SECONDS  The time until the first check-back, in place of `txn.immunity_ms`.

A half message is stored in RMQ_SYS_TRANS_HALF_TOPIC as a batch of one record, uncompressed and without a producer id.
The record is as it was sent, with REAL_TOPIC and REAL_QID added, as in RocketMQ's half messages. The committed record
has neither these two headers nor TRAN_MSG_ID and TRAN_MSG_CHECK_URL. All functions here are pure.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from duolog.protocol.kafka import record_reader
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.record_batch import Header, InvalidBatch, Reason, Record
from duolog.protocol.rocketmq.messages import properties
from duolog.store.entry import Buffer

ID: Final = "TRAN_MSG_ID"
CHECK_URL: Final = "TRAN_MSG_CHECK_URL"
ID_BYTES_MAX: Final = 255
URL_BYTES_MAX: Final = 2048
IMMUNITY_S_MAX: Final = 1 << 31

_IMMUNITY: Final = properties.CHECK_IMMUNITY_TIME_IN_SECONDS
_OWN: Final = frozenset({ID, CHECK_URL, properties.REAL_TOPIC, properties.REAL_QID})
_DESTINATION: Final = frozenset({properties.REAL_TOPIC, properties.REAL_QID})
_HALF_BYTES_MAX: Final = 64 << 20  # Not a limit in practice: half messages are stored uncompressed.


class HalfRequest(NamedTuple):
    """What the headers of a half message ask for."""

    id: str
    check_url: str  # Empty if the broker sends no check-back.
    immunity_ms: int | None
    is_delayed: bool = False  # Its commit may make a delayed message. Known only while it is being sent.


class StoredHalf(NamedTuple):
    """A half message as read from the log."""

    request: HalfRequest
    topic: str
    queue_id: int
    record: Record


def parse_half_request(headers: Sequence[Header]) -> HalfRequest | None:
    """Read the headers of a record; return None if it is no half message. Raises InvalidBatch for an invalid value."""
    found = {name: value for name, value in headers if name in (ID, CHECK_URL, _IMMUNITY)}
    if ID not in found:
        return None
    id = _text(ID, found[ID], ID_BYTES_MAX)
    url = _text(CHECK_URL, found[CHECK_URL], URL_BYTES_MAX) if CHECK_URL in found else ""
    seconds = _text(_IMMUNITY, found[_IMMUNITY], 10) if _IMMUNITY in found else ""
    if seconds and not (seconds.isascii() and seconds.isdecimal()):
        raise InvalidBatch(Reason.INVALID, f"header {_IMMUNITY} is no number of seconds: {seconds!r}")
    return HalfRequest(id, url, min(int(seconds), IMMUNITY_S_MAX) * 1000 if seconds else None)


def _text(name: str, value: bytes | None, bytes_max: int) -> str:
    try:
        text = (value or b"").decode()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or len(value or b"") > bytes_max:
        raise InvalidBatch(
            Reason.INVALID, f"header {name} is no text of 1 to {bytes_max} bytes: {(value or b'')[:40]!r}"
        )
    return text


def half_batch(record: Record, topic: str, queue_id: int) -> bytearray:
    """Make the batch in which a half message is stored until it is decided."""
    kept = [header for header in record.headers if header[0] not in _DESTINATION]
    kept += [(properties.REAL_TOPIC, topic.encode()), (properties.REAL_QID, str(queue_id).encode())]
    return _single(record, kept)


def read_half(frame: Buffer) -> StoredHalf:
    """Read a batch that `half_batch` made."""
    (record,) = record_reader.records(frame, _HALF_BYTES_MAX)
    request = parse_half_request(record.headers)
    assert request is not None, "a half message"
    destination = {name: (value or b"").decode() for name, value in record.headers if name in _DESTINATION}
    return StoredHalf(request, destination[properties.REAL_TOPIC], int(destination[properties.REAL_QID]), record)


def final_record(record: Record) -> Record:
    """Make the record that consumers get after the commit."""
    return record._replace(offset=0, headers=[header for header in record.headers if header[0] not in _OWN])


def _single(record: Record, headers: Sequence[Header]) -> bytearray:
    builder = BatchBuilder()
    builder.append(0, record.timestamp_ms, record.key, record.value, headers)
    return builder.finish(0, 0)
