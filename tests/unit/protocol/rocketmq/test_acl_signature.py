"""Signatures with an access key: what they cover, and what clients of different versions leave out."""

import hmac
from base64 import b64encode

import pytest

from duolog.protocol.rocketmq.acl_signature import SecretKey, SignatureCheck
from tests.kit.signing import signature_of

SECRET = b"secret key"
KEY = SecretKey(SECRET)
FIELDS = {"AccessKey": "alice", "topic": "orders", "queueId": "0"}


def signed(fields: dict[str, str], body: bytes = b"", without: tuple[str, ...] = ()) -> dict[str, str]:
    return fields | {"Signature": signature_of(fields, body, SECRET, without).decode()}


def fits(fields: dict[str, str], body: bytes = b"") -> bool:
    """Check a signature twice, because the second check knows the order of the names."""
    check = SignatureCheck()
    first, second = (check.fits(fields, body, KEY) for _ in range(2))
    assert first is second
    return first


def test_content_is_the_values_in_the_order_of_names_and_the_body() -> None:
    """base64(HMAC-SHA1("secret key", "alice" "0" "orders" "body")), as openssl computes it."""
    assert fits(FIELDS | {"Signature": "TXaSe79oysWrkqwFR6aYyj0H9nI="}, b"body")
    assert signature_of(FIELDS, b"body", SECRET) == b"TXaSe79oysWrkqwFR6aYyj0H9nI="


def test_names_are_in_the_order_of_java() -> None:
    """By UTF-16 code units, U+10000 comes before U+FFFF."""
    in_order = b64encode(hmac.digest(SECRET, b"12", "sha1")).decode()
    for names in (("a", "b"), ("\U00010000", "\uffff")):
        assert fits(dict(zip(reversed(names), "21", strict=True)) | {"Signature": in_order})


@pytest.mark.parametrize(
    ("fields", "without", "expected"),
    [
        (FIELDS, (), True),
        (FIELDS, ("topic",), False),
        (FIELDS | {"SecurityToken": "t"}, (), True),
        (FIELDS | {"SecurityToken": "t"}, ("SecurityToken",), True),  # The Go client.
        (FIELDS | {"_UNIQUE_KEY_QUERY": "true"}, ("_UNIQUE_KEY_QUERY",), True),  # Java 4.9.
        (FIELDS | {"_UNIQUE_KEY_QUERY": "true", "SecurityToken": "t"}, ("_UNIQUE_KEY_QUERY", "SecurityToken"), True),
        (FIELDS | {"_UNIQUE_KEY_QUERY": "true", "SecurityToken": "t"}, ("topic", "SecurityToken"), False),
    ],
)
def test_only_the_fields_that_clients_leave_out_may_be_left_out(
    fields: dict[str, str], without: tuple[str, ...], expected: bool
) -> None:
    assert fits(signed(fields, b"body", without), b"body") is expected


@pytest.mark.parametrize(
    "changed", [{"topic": "payments"}, {"more": "x"}, {"AccessKey": "bob"}, {"Signature": ""}, {"Signature": "\ud800"}]
)
def test_changed_field_does_not_fit(changed: dict[str, str]) -> None:
    assert not fits(signed(FIELDS) | changed)
    assert not fits(signed(FIELDS), b"body")


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_signature_is_the_hmac_for_keys_of_each_size(size: int) -> None:
    secret = bytes(range(size))
    expected = b64encode(hmac.digest(secret, b"content" + b"body", "sha1"))
    assert SecretKey(secret).sign(b"content", memoryview(b"body")) == expected


def test_names_in_another_order_have_the_same_signature() -> None:
    check, fields = SignatureCheck(), signed(FIELDS | {"SecurityToken": "t"})
    assert check.fits(fields, b"", KEY)
    assert check.fits(dict(reversed(fields.items())), b"", KEY)
    assert not check.fits(fields | {"queueId": "1"}, b"", KEY)


def test_remembered_orders_are_bounded() -> None:
    check = SignatureCheck()
    for number in range(1000):
        assert check.fits(signed(FIELDS | {f"field{number}": "x"}), b"", KEY)
    assert check.fits(signed(FIELDS | {"f" * 5000: "x"}), b"", KEY)
    assert len(check._orders) <= 256
    assert all(len(name) < 5000 for names in check._orders for name in names)
