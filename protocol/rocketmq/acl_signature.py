"""Signatures of requests with an access key: the same for ACL 1.0 (client 4.9) and ACL 2.0 (client 5).

    AccessKey       the user's name
    Signature       base64(HMAC-SHA1(secret key, content))
    content         the values of all header fields but `Signature`, in the order of their names, then the body

The order is that of Java's strings, by UTF-16 code units. A signature covers the fields as they were received, so it
must be checked before anything is added to them. It has no time and no nonce: only TLS prevents that a request which
somebody has recorded is sent again. Source: `AclUtils.java`, `AclClientRPCHook.java`, `AclSigner.java`.
"""

import hmac
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
from typing import Final

Buffer = bytes | bytearray | memoryview

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


def signature_of(fields: Mapping[str, str], body: Buffer, secret_key: bytes, without: tuple[str, ...] = ()) -> bytes:
    """Return the signature of a request; `without` are names of fields that it does not cover."""
    values = [fields[name] for name in _in_order(fields) if name != SIGNATURE and name not in without]
    # Java encodes half of a surrogate pair as a question mark, and so does "replace".
    content = "".join(values).encode("utf-8", "replace")
    return b64encode(hmac.digest(secret_key, b"".join((content, body)), "sha1"))


def is_signed_with(fields: Mapping[str, str], body: Buffer, secret_key: bytes) -> bool:
    """Return whether the field `Signature` fits; the comparison takes the same time for each wrong one."""
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    fits = False
    for without in _left_out(fields):
        fits |= hmac.compare_digest(given, signature_of(fields, body, secret_key, without))
    return fits


def _left_out(fields: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the sets of fields that clients do not cover.

    The Go client sends a security token and does not sign it. Clients of 4.9 do not sign `_UNIQUE_KEY_QUERY`, and those
    of 5 do.
    """
    optional = [name for name in (SECURITY_TOKEN, _UNIQUE_KEY_QUERY) if name in fields]
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
