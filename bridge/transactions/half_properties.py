"""The properties of RocketMQ half messages: the destination, the producer group for check-backs, and the immunity."""

from typing import Final

from duolog.protocol.rocketmq.messages import properties

_find_group: Final = properties.finder(properties.PGROUP)
_find_immunity: Final = properties.finder(properties.CHECK_IMMUNITY_TIME_IN_SECONDS)
# The properties that only a half message has begin with this text and come last, so that one cut removes them.
_PREPARED: Final = f"{properties.TRAN_MSG}\x01true\x02{properties.REAL_TOPIC}\x01"
_PREPARED_BYTES: Final = _PREPARED.encode()


def check_back_of(raw: bytes) -> tuple[str, int | None]:
    """Return the producer group for check-backs in a half message's properties, and its immunity in ms, if any.

    A value that is no number, or -1, means no immunity. Source: TransactionalMessageServiceImpl.java#getImmunityTime.
    """
    group, seconds = _find_group(raw), _find_immunity(raw)
    try:
        immunity_s = -1 if seconds is None else int(properties.as_text(seconds))
    except ValueError:
        immunity_s = -1
    immunity_ms = None if immunity_s == -1 else max(0, immunity_s) * 1000
    return "" if group is None else properties.as_text(group), immunity_ms


def half_properties(raw: bytes, added: str, topic: str, queue_id: int) -> bytes:
    """Make the properties of a half message from those of the message, without TRAN_MSG, and `added`."""
    own = f"{added}{_PREPARED}{topic}\x02{properties.REAL_QID}\x01{queue_id}\x02"
    return properties.join(raw, own.encode())


def sent_properties(raw: bytes) -> tuple[bytes, str, int]:
    """Split the result of `half_properties` into the properties of the message, its topic and its queue id."""
    at = raw.rfind(_PREPARED_BYTES)
    assert at >= 0, "a half message"
    topic, _, queue = raw[at + len(_PREPARED_BYTES) : -1].decode().partition("\x02")
    return raw[:at], topic, int(queue.partition("\x01")[2])
