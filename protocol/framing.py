"""The class FrameReader: splits a byte stream of either protocol into length-prefixed frames.

    length i32, big-endian | payload: `length` bytes      (Kafka: a request; RocketMQ: a remoting command)

The length does not include its own four bytes. The reader does no I/O: the owner of the socket calls `feed` with the
bytes that have arrived.
"""

import struct

from duolog.protocol import foreign
from duolog.protocol.errors import ProtocolError

_read_length = struct.Struct(">i").unpack_from


class FrameReader:
    """Splits a stream into the payloads of its frames.

    `limit_bytes` is the size of the largest payload that is accepted. Kafka's default is 100 MiB
    (`socket.request.max.bytes`), RocketMQ's 16 MiB (`com.rocketmq.remoting.frameMaxLength`). It may be changed between
    two frames. The reader buffers the bytes of at most one unfinished frame, and allocates no memory for bytes that
    have not arrived.
    """

    __slots__ = ("_missing", "limit_bytes", "partial", "refused")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.refused = b""  # The first bytes of the frame that was refused, including its length.
        # The bytes that have arrived of an unfinished frame: a part of its length, or of its payload.
        self.partial = bytearray()
        self._missing = 0  # Missing bytes of the payload. Invariant: 0 while `partial` is part of a length.

    def feed(self, data: bytes) -> list[memoryview]:
        """Return the payloads that `data`, the next bytes of the stream, completes. The payloads are read-only.

        `data` must not be changed afterwards: a payload that is contained in it is returned as a slice, without a copy.
        Raises ProtocolError for a length below 0 or above the limit. The reader cannot be used after it, and earlier
        frames in `data` are not returned.
        """
        view = memoryview(data).toreadonly()
        return self._resume(view) if self.partial or self._missing else self._cut(view, 0)

    def _cut(self, view: memoryview, at: int) -> list[memoryview]:
        payloads: list[memoryview] = []
        end, limit_bytes = len(view), self.limit_bytes
        while end - at >= 4:
            (length,) = _read_length(view, at)
            if not 0 <= length <= limit_bytes:
                raise self._refusal(length, view[at:])
            start = at + 4
            at = start + length
            if at > end:
                self.partial += view[start:]
                self._missing = at - end
                return payloads
            payloads.append(view[start:at])
        if at < end:
            self.partial += view[at:]
        return payloads

    def _resume(self, view: memoryview) -> list[memoryview]:
        """Continue the unfinished frame."""
        at = 0
        if not self._missing:
            at = 4 - len(self.partial)
            self.partial += view[:at]
            if len(self.partial) < 4:
                return []
            (length,) = _read_length(self.partial, 0)
            if not 0 <= length <= self.limit_bytes:
                raise self._refusal(length, memoryview(bytes(self.partial + view[at:][: foreign.BYTES])))
            self.partial, self._missing = bytearray(), length
        more = view[at : at + self._missing]
        # One growing buffer is used instead of a list of chunks, because a peer that sends single bytes would make the
        # list hold one object for each byte.
        self.partial += more
        self._missing -= len(more)
        if self._missing:
            return []
        payload = memoryview(self.partial).toreadonly()
        self.partial = bytearray()
        return [payload, *self._cut(view, at + len(more))]

    def _refusal(self, length: int, refused: memoryview) -> ProtocolError:
        self.refused = bytes(refused[: foreign.BYTES])
        return ProtocolError(f"the frame has a length of {length} bytes; allowed are 0 to {self.limit_bytes}")
