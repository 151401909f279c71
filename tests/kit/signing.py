"""The signature of a RocketMQ request as a client computes it, without the broker's code (`acl_signature.py`)."""

import hmac
from base64 import b64encode
from collections.abc import Mapping


def signature_of(fields: Mapping[str, str], body: bytes, secret_key: bytes, without: tuple[str, ...] = ()) -> bytes:
    """Return the signature of a request; `without` are names of fields that it does not cover."""
    covered = sorted(fields.keys() - {"Signature", *without}, key=_java_order)
    content = "".join(fields[name] for name in covered).encode("utf-8", "replace")
    return b64encode(hmac.digest(secret_key, content + body, "sha1"))


def _java_order(name: str) -> bytes:
    """Return what sorts like Java's strings: by UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")
