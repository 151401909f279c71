"""Reading a body whose bytes are not trusted: each read is checked against end, depth and number of values."""

from typing import Final

VALUES_MAX: Final = 20_000  # The values of one body, so that reading an array of values without bytes ends.
DEPTH_MAX: Final = 64
VARINT_BYTES_MAX: Final = 10


class UndecodableBody(ValueError):
    """The body does not fit the schema, or the schema cannot be used."""


def signed_of(zigzag: int) -> int:
    """Return the signed integer that zigzag encoding writes as this one."""
    return (zigzag >> 1) ^ -(zigzag & 1)


class BoundedReader:
    """The bytes of a body from `at` on."""

    def __init__(self, body: bytes, at: int = 0) -> None:
        self._body, self.at = body, at
        self._values = 0

    def is_at_end(self) -> bool:
        return self.at == len(self._body)

    def count_value(self, depth: int) -> None:
        """Count a value at this depth. Raises UndecodableBody above the limits."""
        self._values += 1
        if self._values > VALUES_MAX:
            raise UndecodableBody(f"more than {VALUES_MAX} values")
        if depth > DEPTH_MAX:
            raise UndecodableBody(f"values are nested deeper than {DEPTH_MAX}")

    def take(self, size: int) -> bytes:
        """Return the next bytes. Raises UndecodableBody if there are not as many."""
        end = self.at + size
        if size < 0 or end > len(self._body):
            raise UndecodableBody(
                f"the body ends after {len(self._body)} bytes, and a value needs {size} bytes from {self.at} on"
            )
        found = self._body[self.at : end]
        self.at = end
        return found

    def uvarint(self) -> int:
        """Return an integer in groups of seven bits, the lowest first."""
        found = 0
        for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found & 0xFFFF_FFFF_FFFF_FFFF
        raise UndecodableBody(f"an integer at {self.at} has more than {VARINT_BYTES_MAX} bytes")

    def zigzag(self) -> int:
        """Return a signed integer."""
        return signed_of(self.uvarint())

    def text(self, size: int) -> str:
        """Return text in UTF-8."""
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise UndecodableBody(f"a string that ends at {self.at} is not UTF-8") from error
