"""Encodes large responses element by element, so that the caller can let the event loop turn between two elements, and
finds the errors in a response.

    response = types.MetadataResponse(topics=Elements(types.MetadataResponseTopic(...) for ...), ...)
    steps = encode_steps(response, bytes_max, on_entity)

`encode_steps` returns a generator, which yields the number of bytes encoded so far and returns the encoded pieces.

kio encodes a whole entity in one call, in about 5 us for each element of its arrays. This module encodes the arrays
that are given as `Elements`: each element is created and encoded in one step. An element may contain `Elements`, too.
For such an array kio writes an empty array, and the encoder then replaces its count by the elements.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import Field, fields, is_dataclass
from functools import cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.primitive_types import CLASSIC, COMPACT

PIECES_JOINED: Final = 500  # Encoded pieces that are joined in one step.


class AnswerTooLarge(ProtocolError):
    """The encoded response would have more bytes than its limit. The encoded part is dropped."""


class Elements:
    """An array of a response whose elements are created one after another. None stands for an empty step."""

    __slots__ = ("elements", "place", "written")

    def __init__(self, elements: Iterable[Any]) -> None:
        self.elements = elements
        self.written: list[bytes] = []  # The pieces that kio has written for the entity that contains this array.
        self.place = 0  # The index in `written` after the count of the empty array.

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        self.place = len(self.written)
        return iter(())


class _Encoder:
    def __init__(self, bytes_max: int, on_entity: Callable[[Any], None]) -> None:
        self._on_entity = on_entity
        self.pieces: list[bytes] = []
        self._bytes_left = self._bytes_max = bytes_max

    def entity(self, entity: Any) -> Iterator[int]:
        """Encode an entity, in one step for each element of its `Elements`; each step yields the bytes so far."""
        self._on_entity(entity)
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
        whole_at = count_at + 1  # Index of the first piece that is not joined with others yet.
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
            raise AnswerTooLarge(f"the response has more than {self._bytes_max} bytes")
        self.pieces.append(piece)


def encode_steps(entity: Any, bytes_max: int, on_entity: Callable[[Any], None]) -> Generator[int, None, list[bytes]]:
    """Encode the body of a response in steps. Yields the number of bytes encoded so far; returns the encoded pieces.

    `on_entity` is called with the response and with each element of an array that is given as `Elements`.

    Raises AnswerTooLarge as soon as the body has more than `bytes_max` bytes.
    """
    encoder = _Encoder(bytes_max, on_entity)
    yield from encoder.entity(entity)
    pieces = encoder.pieces
    return [b"".join(pieces)] if len(pieces) <= PIECES_JOINED else pieces


@cache
def _arrays(entity_type: Any) -> tuple[str, ...]:
    """Return the names of the fields that are arrays, in the order in which kio writes them."""
    return tuple(
        field.name
        for field in fields(entity_type)
        if any(get_origin(part) is tuple for part in (field.type, *get_args(field.type)))
    )


@cache
def _writer(entity_type: Any) -> Callable[[Any, Any], None]:
    return entity_writer(entity_type)


# -- Errors


class _Places(NamedTuple):
    """Where an entity has error codes: fields of its own, and arrays whose elements have some."""

    own: tuple[Callable[[Any], ErrorCode], ...]
    arrays: "tuple[tuple[Callable[[Any], Any], _Places], ...]"


def error_codes(entity: Any) -> list[ErrorCode]:
    """Return the error codes of a response, or of an element of one, that are not `none`, also those in its arrays.

    An array that is given as `Elements` counts as empty, because its elements do not exist yet.
    """
    found: list[ErrorCode] = []
    entity_type: Any = type(entity)
    _find(entity, _places(entity_type), found)
    return found


def _find(entity: Any, places: _Places, found: list[ErrorCode]) -> None:
    own, arrays = places
    if own:
        found += [error for error_of in own if (error := error_of(entity)) is not ErrorCode.none]
    for elements_of, inner in arrays:
        elements = elements_of(entity)
        if not elements:
            continue
        if inner.arrays:
            for element in elements:
                _find(element, inner, found)
            continue
        for error_of in inner.own:
            errors = [*map(error_of, elements)]
            if errors.count(ErrorCode.none) != len(errors):
                found += [error for error in errors if error is not ErrorCode.none]


@cache
def _places(entity_type: Any) -> _Places:
    every = fields(entity_type)
    own = tuple(attrgetter(field.name) for field in every if field.type is ErrorCode)
    inner = [(field.name, _places(element)) for field in every if (element := element_of(field)) is not None]
    return _Places(own, tuple((attrgetter(name), places) for name, places in inner if any(places)))


def element_of(field: "Field[Any]") -> Any:
    """Return the class of an array's elements; None: the field is not an array of entities."""
    for part in (field.type, *get_args(field.type)):
        if get_origin(part) is tuple and is_dataclass(get_args(part)[0]):
            return get_args(part)[0]
    return None
