"""How a Kafka producer's half message asks, lies and leaves: pure functions.

    TRAN_MSG_ID                     the producer's own id, unique within its topic: this makes a record a half message
    TRAN_MSG_CHECK_URL              where to ask what became of it; one of `txn.check_urls`; without it nobody is asked
    CHECK_IMMUNITY_TIME_IN_SECONDS  when to ask first, if not after `txn.immunity_ms`

It lies in RMQ_SYS_TRANS_HALF_TOPIC as a batch of one record, uncompressed and without producer id, as it was sent and
with REAL_TOPIC and REAL_QID, as RocketMQ's have them. Committed it loses these two, its id and its URL.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from duolog.protocol.kafka import record_batch
from duolog.protocol.kafka.record_batch import (
    BatchBuilder,
    Header,
    InvalidBatch,
    Reason,
    Record,
)
from duolog.protocol.rocketmq.messages import properties
from duolog.store.entry import Buffer

ID: Final = "TRAN_MSG_ID"
CHECK_URL: Final = "TRAN_MSG_CHECK_URL"
ID_BYTES_MAX: Final = 255
URL_BYTES_MAX: Final = 2048
IMMUNITY_S_MAX: Final = 1 << 31

_IMMUNITY: Final = properties.CHECK_IMMUNITY_TIME_IN_SECONDS
_OWN: Final = frozenset({ID, CHECK_URL, properties.REAL_TOPIC, properties.REAL_QID})
_PLACE: Final = frozenset({properties.REAL_TOPIC, properties.REAL_QID})
_HALF_BYTES_MAX: Final = 64 << 20  # None of ours is compressed, so nothing is inflated.


class HalfWish(NamedTuple):
    """What a record asks for that is to be a half message."""

    id: str
    check_url: str  # "": nobody is to be asked
    immunity_ms: int | None


class StoredHalf(NamedTuple):
    """A half message as it lies in the log."""

    wish: HalfWish
    topic: str
    queue_id: int
    record: Record


def wish_of(headers: Sequence[Header]) -> HalfWish | None:
    """Read the headers of a record; None: it is no half message. Raises InvalidBatch for what is no such text."""
    found = {name: value for name, value in headers if name in (ID, CHECK_URL, _IMMUNITY)}
    if ID not in found:
        return None
    id = _text(ID, found[ID], ID_BYTES_MAX)
    url = _text(CHECK_URL, found[CHECK_URL], URL_BYTES_MAX) if CHECK_URL in found else ""
    seconds = _text(_IMMUNITY, found[_IMMUNITY], 10) if _IMMUNITY in found else ""
    if seconds and not (seconds.isascii() and seconds.isdecimal()):
        raise InvalidBatch(Reason.INVALID, f"header {_IMMUNITY} is no number of seconds: {seconds!r}")
    return HalfWish(id, url, min(int(seconds), IMMUNITY_S_MAX) * 1000 if seconds else None)


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
    """Give the form in which it waits."""
    kept = [header for header in record.headers if header[0] not in _PLACE]
    kept += [(properties.REAL_TOPIC, topic.encode()), (properties.REAL_QID, str(queue_id).encode())]
    return _single(record, kept)


def read_half(frame: Buffer) -> StoredHalf:
    """Read what `half_batch` made."""
    (record,) = record_batch.records(frame, _HALF_BYTES_MAX)
    wish = wish_of(record.headers)
    assert wish is not None, "a half message"
    place = {name: (value or b"").decode() for name, value in record.headers if name in _PLACE}
    return StoredHalf(wish, place[properties.REAL_TOPIC], int(place[properties.REAL_QID]), record)


def final_record(record: Record) -> Record:
    """Give the record that consumers get."""
    return record._replace(offset=0, headers=[header for header in record.headers if header[0] not in _OWN])


def _single(record: Record, headers: Sequence[Header]) -> bytearray:
    builder = BatchBuilder()
    builder.append(0, record.timestamp_ms, record.key, record.value, headers)
    return builder.finish(0, 0)
