"""The recall handle: the answer to a send of a delayed message contains it, and the producer recalls the message by it.

    base64url of   v1 <topic> <broker name> <due ms> <UNIQ_KEY> <id of the pending message>

Clients read the first five words, to find the broker. The last word is an addition of Duolog.
Source: `RecallMessageHandle.java`.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import Final, NamedTuple

from duolog.protocol.errors import ProtocolError

_VERSION: Final = "v1"
_WORDS: Final = 6


class RecallHandle(NamedTuple):
    topic: str
    broker: str
    due_ms: int
    unique_key: str
    timer_id: str


def encode(topic: str, broker: str, due_ms: int, unique_key: str, timer_id: str) -> str:
    # Spaces in the key are replaced, because spaces separate the words.
    words = (_VERSION, topic, broker, str(due_ms), unique_key.replace(" ", "_"), timer_id)
    return urlsafe_b64encode(" ".join(words).encode()).decode()


def decode(text: str) -> RecallHandle:
    """Decode a handle. Raises ProtocolError if it is malformed."""
    try:
        words = urlsafe_b64decode(text.encode()).decode().split(" ")
        if len(words) != _WORDS or words[0] != _VERSION:
            raise ValueError(f"{len(words)} words")
        return RecallHandle(words[1], words[2], int(words[3]), words[4], words[5])
    except (Base64Error, ValueError) as error:
        raise ProtocolError(f"recall handle is invalid: {error}") from None
