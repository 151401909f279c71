"""Timer ids as clients get them: 24 characters, with a checksum that covers the cluster's id.

    due u64, without the first two bytes, which no time needs | address u64 | CRC-32C u32         base64, URL-safe

So an id that this cluster never gave is distinguished from the id of a message that was delivered.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from struct import Struct
from typing import Final

from crc32c import crc32c

from duolog.delay.rows import KEY, KEY_SIZE, TimerId

_TEXT_ID: Final = Struct(">QQI")
_DUE_BYTES_CUT: Final = 2
_LENGTH: Final = 24


class TextIds:
    def __init__(self, cluster_id: str) -> None:
        self._salt = cluster_id.encode()

    def text_of(self, timer_id: TimerId) -> str:
        raw = KEY.pack(*timer_id)
        return urlsafe_b64encode((raw + self._check(raw))[_DUE_BYTES_CUT:]).decode()

    def id_of(self, text: str) -> TimerId | None:
        """Read an id; None if this cluster never gave it."""
        if len(text) != _LENGTH:
            return None
        try:
            raw = bytes(_DUE_BYTES_CUT) + urlsafe_b64decode(text)
        except (Base64Error, ValueError):
            return None
        if len(raw) != _TEXT_ID.size or raw[KEY_SIZE:] != self._check(raw[:KEY_SIZE]):
            return None
        due_ms, address = KEY.unpack_from(raw)
        return due_ms, address

    def _check(self, raw: bytes) -> bytes:
        return crc32c(self._salt + raw).to_bytes(4, "big")
