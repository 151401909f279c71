"""Signatures of requests with an access key: the same for ACL 1.0 (client 4.9) and ACL 2.0 (client 5).

    AccessKey       the user's name
    Signature       base64(HMAC-SHA1(secret key, content))
    content         the values of all header fields but `Signature`, in the order of their names, then the body

The order is that of Java's strings, by UTF-16 code units. A signature covers the fields as they were received, so it
must be checked before anything is added to them. It has no time and no nonce: only TLS prevents that a request which
somebody has recorded is sent again. Source: `AclUtils.java`, `AclClientRPCHook.java`, `AclSigner.java`.

Each request is checked, so what is the same for all of them is done once: the first block of both hashes of a secret
key (`SecretKey`), and the order of the names, of which a client sends few sets (`SignatureCheck`).
"""

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Final

Buffer = bytes | bytearray | memoryview
# Returns the values of some fields in the order in which they are signed: a tuple, or the text of a single one.
Values = Callable[[Mapping[str, str]], Iterable[str]]

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

# The sets of names whose order is remembered, and the bound of one of them.
_SETS_MAX: Final = 256
_NAMES_MAX: Final = 64
_NAME_CHARACTERS_MAX: Final = 1024  # The length of all names of a set together.
_BLOCK_BYTES: Final = 64
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))


class SecretKey:
    """A secret key, and HMAC-SHA1 with it (RFC 2104). To copy two hashes takes half the time of `hmac.digest`."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret_key: bytes) -> None:
        key = secret_key if len(secret_key) <= _BLOCK_BYTES else hashlib.sha1(secret_key).digest()
        block = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha1(block.translate(_INNER_PAD))
        self._outer = hashlib.sha1(block.translate(_OUTER_PAD))

    def sign(self, content: bytes, body: Buffer) -> bytes:
        """Return the signature of a content and the body that follows it."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        inner.update(body)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


class SignatureCheck:
    """Checks the signatures of requests."""

    __slots__ = ("_orders",)

    def __init__(self) -> None:
        self._orders: dict[tuple[str, ...], list[Values]] = {}  # By the names of a request; bounded.

    def fits(self, fields: Mapping[str, str], body: Buffer, secret_key: SecretKey) -> bool:
        """Return whether the field `Signature` fits; the comparison takes the same time for each wrong one."""
        given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
        names = tuple(fields)
        fits = False
        for values in self._orders.get(names) or self._orders_of(names):
            # Java encodes half of a surrogate pair as a question mark, and so does "replace".
            content = "".join(values(fields)).encode("utf-8", "replace")
            fits |= hmac.compare_digest(given, secret_key.sign(content, body))
        return fits

    def _orders_of(self, names: tuple[str, ...]) -> list[Values]:
        """Return the sets of fields that the signature may cover, each in its order."""
        orders = [_values_of(names, without) for without in _left_out(names)]
        if len(names) <= _NAMES_MAX and sum(map(len, names)) <= _NAME_CHARACTERS_MAX:
            if len(self._orders) >= _SETS_MAX:
                self._orders.clear()
            self._orders[names] = orders
        return orders


def _values_of(names: Collection[str], without: tuple[str, ...]) -> Values:
    covered = [name for name in _in_order(names) if name != SIGNATURE and name not in without]
    return itemgetter(*covered) if covered else lambda fields: ()


def _left_out(names: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Yield the sets of fields that clients do not cover.

    The Go client sends a security token and does not sign it. Clients of 4.9 do not sign `_UNIQUE_KEY_QUERY`, and those
    of 5 do.
    """
    optional = [name for name in (SECURITY_TOKEN, _UNIQUE_KEY_QUERY) if name in names]
    yield ()
    for name in optional:
        yield (name,)
    if len(optional) > 1:
        yield tuple(optional)


def _in_order(names: Collection[str]) -> list[str]:
    """Return the names in the order of Java's strings, which is that of Python's for ASCII."""
    return sorted(names) if "".join(names).isascii() else sorted(names, key=_java_order)


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
