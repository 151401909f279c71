"""Signatures with an access key: what they cover, and what clients of different versions leave out."""

import pytest

from duolog.protocol.rocketmq.acl_signature import is_signed_with, signature_of

SECRET = b"secret key"
FIELDS = {"AccessKey": "alice", "topic": "orders", "queueId": "0"}


def signed(fields: dict[str, str], body: bytes = b"", without: tuple[str, ...] = ()) -> dict[str, str]:
    return fields | {"Signature": signature_of(fields, body, SECRET, without).decode()}


def test_content_is_the_values_in_the_order_of_names_and_the_body() -> None:
    """base64(HMAC-SHA1("secret key", "alice" "0" "orders" "body")), as openssl computes it."""
    assert signature_of(FIELDS, b"body", SECRET) == b"TXaSe79oysWrkqwFR6aYyj0H9nI="


def test_names_are_in_the_order_of_java() -> None:
    """By UTF-16 code units, U+10000 comes before U+FFFF."""
    high, low = {"\U00010000": "1", "\uffff": "2"}, {"a": "1", "b": "2"}
    assert signature_of(high, b"", SECRET) == signature_of(low, b"", SECRET)


@pytest.mark.parametrize(
    ("fields", "without", "fits"),
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
    fields: dict[str, str], without: tuple[str, ...], fits: bool
) -> None:
    assert is_signed_with(signed(fields, b"body", without), b"body", SECRET) is fits


@pytest.mark.parametrize(
    "changed", [{"topic": "payments"}, {"more": "x"}, {"AccessKey": "bob"}, {"Signature": ""}, {"Signature": "\ud800"}]
)
def test_changed_field_does_not_fit(changed: dict[str, str]) -> None:
    assert not is_signed_with(signed(FIELDS) | changed, b"", SECRET)
    assert not is_signed_with(signed(FIELDS), b"body", SECRET)
