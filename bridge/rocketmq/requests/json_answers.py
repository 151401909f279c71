"""Long JSON answers, written piece by piece in slices of the loop, up to ANSWER_BYTES_MAX.

    def table(broker, command) -> Steps:
        pieces = Pieces()
        pieces.add(b'{"table":{')
        yield from pieces.rows(broker.things(), row_of)     # a few rows for each turn of the loop
        pieces.add(b"}}")
        return answer(command, body=pieces.buffers)

    return connection.in_slices(command, table(broker, command))

What is listed is a snapshot of the names; each row says what is true when it is written.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.store.entry import Buffer

T = TypeVar("T")

ANSWER_BYTES_MAX: Final = 16 << 20
"""Clients close the connection on a longer frame: `com.rocketmq.remoting.frameMaxLength`."""

ROWS_AT_ONCE: Final = 250  # One to two milliseconds.


class Pieces:
    """The body of an answer, as far as it is written."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._size = 0  # Invariant: the sum of their sizes.

    def add(self, piece: bytes) -> None:
        """Write what comes next. Raises RequestRefused if the answer gets too long for its client."""
        self._size += len(piece)
        if self._size > ANSWER_BYTES_MAX:
            remark = f"the answer has more than {ANSWER_BYTES_MAX} bytes, which no client takes; ask for a part of it"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)
        self.buffers.append(piece)

    def rows(self, items: Iterable[T], write: Callable[[T], bytes]) -> Iterator[None]:
        """Write a row for each item, with commas between them; yields where the loop may turn."""
        chunk: list[bytes] = []
        before = b""
        for item in items:
            chunk.append(write(item))
            if len(chunk) == ROWS_AT_ONCE:
                self.add(before + b",".join(chunk))
                chunk, before = [], b","
                yield
        if chunk:
            self.add(before + b",".join(chunk))


def member(name: str, value: object) -> bytes:
    """Write one member of an object."""
    return fastjson.write(name) + b":" + fastjson.write(value)
