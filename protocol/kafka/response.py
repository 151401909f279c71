"""Responses of any size, encoded element by element, so that whoever encodes may let others have their turn.

    response = types.MetadataResponse(topics=Elements(types.MetadataResponseTopic(...) for ...), ...)
    steps = encode_steps(response, bytes_max)      # a generator: it yields the bytes so far, and returns the pieces

kio writes a whole entity in one call, at some 5 us for each element of its arrays. An array that is given as `Elements`
is written here instead: its elements are made when it is their turn, and each is a step. They may hold `Elements`
themselves. Where kio would write such an array it writes an empty one, and the array notes the place.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import fields
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, get_args, get_origin

from kio.serial import entity_writer

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.primitive_types import CLASSIC, COMPACT

PIECES_JOINED: Final = 500  # in one step


class AnswerTooLarge(ProtocolError):
    """The response has more bytes than it may have; what was encoded of it is dropped."""


class Elements:
    """An array of a response whose elements are made one after the other; None among them is a step without one."""

    __slots__ = ("elements", "place", "written")

    def __init__(self, elements: Iterable[Any]) -> None:
        self.elements = elements
        self.written: list[bytes] = []  # What kio has written so far of the entity that has this array.
        self.place = 0  # In `written`, behind the count of the empty array.

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        self.place = len(self.written)
        return iter(())


class _Encoder:
    def __init__(self, bytes_max: int) -> None:
        self.pieces: list[bytes] = []
        self._bytes_left = self._bytes_max = bytes_max

    def entity(self, entity: Any) -> Iterator[int]:
        """Write an entity, one step for each element of `Elements` in it; each step gives the bytes written so far."""
        entity_type: Any = type(entity)
        written: list[bytes] = []
        arrays = [array for name in _arrays(entity_type) if type(array := getattr(entity, name)) is Elements]
        for array in arrays:
            array.written = written
        _writer(entity_type)(SimpleNamespace(write=written.append), entity)
        done = 0
        for array in arrays:
            self._add(written[done : array.place - 1])
            yield from self._elements(entity_type, array.elements)
            done = array.place
        self._add(written[done:])

    def _elements(self, entity_type: Any, elements: Iterable[Any]) -> Iterator[int]:
        count, count_at = 0, len(self.pieces)
        self.pieces.append(b"")
        whole_at = count_at + 1  # From here on pieces are joined when they are many.
        for element in elements:
            if element is not None:
                yield from self.entity(element)
                count += 1
                if len(self.pieces) - whole_at > PIECES_JOINED:
                    self.pieces[whole_at:] = (b"".join(self.pieces[whole_at:]),)
                    whole_at += 1
            yield self._bytes_max - self._bytes_left
        wire = COMPACT if entity_type.__flexible__ else CLASSIC
        self.pieces[count_at] = wire.array_count(count)

    def _add(self, written: list[bytes]) -> None:
        piece = b"".join(written)
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            raise AnswerTooLarge(f"more than {self._bytes_max} bytes of an answer")
        self.pieces.append(piece)


def encode_steps(entity: Any, bytes_max: int) -> Generator[int, None, list[bytes]]:
    """Encode a response's body; gives its pieces. Raises AnswerTooLarge as soon as they are more than `bytes_max`.

    What it yields is the number of bytes encoded so far.
    """
    encoder = _Encoder(bytes_max)
    yield from encoder.entity(entity)
    pieces = encoder.pieces
    return [b"".join(pieces)] if len(pieces) <= PIECES_JOINED else pieces


@cache
def _arrays(entity_type: Any) -> tuple[str, ...]:
    """Name the fields that are arrays, in the order in which they are written."""
    return tuple(
        field.name
        for field in fields(entity_type)
        if any(get_origin(part) is tuple for part in (field.type, *get_args(field.type)))
    )


@cache
def _writer(entity_type: Any) -> Callable[[Any, Any], None]:
    return entity_writer(entity_type)
