"""Frames of both protocols: a length and that many bytes, out of a stream that was cut anywhere.

    length i32, big-endian | payload: `length` bytes      (Kafka: a request; RocketMQ: a remoting command)

The length does not count itself. Sans-IO: whoever owns the socket feeds what arrived and gets whole payloads.
"""

import struct

from duolog.protocol import foreign
from duolog.protocol.errors import ProtocolError

_read_length = struct.Struct(">i").unpack_from


class FrameReader:
    """Cut a stream into the payloads of its frames.

    `limit_bytes` is the largest payload accepted; the peers' own defaults are 100 MiB (Kafka,
    `socket.request.max.bytes`) and 16 MiB (RocketMQ, `com.rocketmq.remoting.frameMaxLength`). It may be changed
    between two frames, as Kafka does once a connection has authenticated.
    At most one unfinished frame is held, and of it only what arrived: a length costs nothing until its bytes come.
    """

    __slots__ = ("_missing", "_partial", "limit_bytes", "refused")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.refused = b""  # The first bytes of the frame that was refused, its length among them.
        self._partial = bytearray()  # The start of an unfinished frame: one to three bytes of length, or payload only.
        self._missing = 0  # Payload bytes still to come. Invariant: 0 while `_partial` is part of a length.

    @property
    def buffered(self) -> int:
        """Bytes held of a frame that is not complete."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[memoryview]:
        """Take what arrived, give the payloads that it completes, in order, read-only.

        `data` must not change later: a payload that lies whole in it is a slice of it, not a copy. A payload that
        spans several calls is joined once. Raises ProtocolError for a length below 0 or above the limit, before any
        of that frame is kept; the stream has then lost its frames for good, and the frames before it in `data` go
        with it.
        """
        view = memoryview(data).toreadonly()
        return self._resume(view) if self._partial or self._missing else self._cut(view, 0)

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
                self._partial += view[start:]
                self._missing = at - end
                return payloads
            payloads.append(view[start:at])
        if at < end:
            self._partial += view[at:]
        return payloads

    def _resume(self, view: memoryview) -> list[memoryview]:
        """Go on with the unfinished frame."""
        at = 0
        if not self._missing:
            at = 4 - len(self._partial)
            self._partial += view[:at]
            if len(self._partial) < 4:
                return []
            (length,) = _read_length(self._partial, 0)
            if not 0 <= length <= self.limit_bytes:
                raise self._refusal(length, memoryview(bytes(self._partial + view[at:][: foreign.BYTES])))
            self._partial, self._missing = bytearray(), length
        rest = view[at : at + self._missing]
        # One growing buffer, not a list of chunks: single bytes from a peer would make us keep an object for each.
        self._partial += rest
        self._missing -= len(rest)
        if self._missing:
            return []
        payload = memoryview(self._partial).toreadonly()
        self._partial = bytearray()
        return [payload, *self._cut(view, at + len(rest))]

    def _refusal(self, length: int, refused: memoryview) -> ProtocolError:
        self.refused = bytes(refused[: foreign.BYTES])
        return ProtocolError(f"frame of {length} bytes; allowed are 0 to {self.limit_bytes}")
