"""Long JSON answers, which are written row by row, in slices of the loop, up to ANSWER_BYTES_MAX.

    def table(broker, command) -> Steps:
        pieces = Pieces()
        pieces.add(b'{"table":{')
        yield from pieces.rows(broker.things(), row_of)     # some rows in each turn of the loop
        pieces.add(b"}}")
        return answer(command, body=pieces.buffers)

    return connection.in_slices(command, table(broker, command))

The rows are those of the first turn; each row has the state at the time when it is written.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.store.entry import Buffer

T = TypeVar("T")

ANSWER_BYTES_MAX: Final = 16 << 20
"""A client closes its connection on a longer frame (`com.rocketmq.remoting.frameMaxLength`)."""

ROWS_AT_ONCE: Final = 250  # Writing them takes one to two milliseconds.


class Pieces:
    """The part of an answer's body that is written so far."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._size = 0  # Invariant: the sum of the pieces' sizes.

    def add(self, piece: bytes) -> None:
        """Add the next bytes of the body. Raises RequestRefused if the answer becomes too long for its client."""
        self._size += len(piece)
        if self._size > ANSWER_BYTES_MAX:
            remark = f"the answer has more than {ANSWER_BYTES_MAX} bytes, which no client takes; ask for a part of it"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)
        self.buffers.append(piece)

    def rows(self, items: Iterable[T], write: Callable[[T], bytes]) -> Iterator[None]:
        """Add a row for each item, separated by commas; yields between slices."""
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
    """Return one member of a JSON object."""
    return fastjson.write(name) + b":" + fastjson.write(value)
