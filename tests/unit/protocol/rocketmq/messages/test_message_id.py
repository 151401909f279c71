"""Message ids are those of the official Java implementation; other text raises ProtocolError only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.messages.message_id import (
    message_id,
    message_ids,
    pack_host,
    parse_message_id,
    unpack_host,
)

# `MessageDecoder.createMessageId` of org.apache.rocketmq:rocketmq-common:5.5.0, for port 10911.
OF_JAVA = [
    ("10.1.2.3", 123456789012, "0A01020300002A9F0000001CBE991A14"),
    ("2001:db8::1", 123456789012, "20010DB800000000000000000000000100002A9F0000001CBE991A14"),
]


@pytest.mark.parametrize(("ip", "physical_offset", "text"), OF_JAVA)
def test_ids_are_those_of_java(ip: str, physical_offset: int, text: str) -> None:
    host = pack_host(ip, 10911)
    assert message_id(host, physical_offset) == text
    assert parse_message_id(text) == parse_message_id(text.lower()) == (host, physical_offset)
    assert unpack_host(host) == (ip, 10911)


def test_ipv4_in_ipv6_clothes_is_ipv4() -> None:
    assert pack_host("::ffff:10.1.2.3", 1) == pack_host("10.1.2.3", 1)


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, (1 << 63) - 1))
def test_round_trip(ip: object, port: int, physical_offset: int) -> None:
    host = pack_host(str(ip), port)
    assert parse_message_id(message_id(host, physical_offset)) == (host, physical_offset)
    assert message_ids(host, [physical_offset, 7]) == f"{message_id(host, physical_offset)},{message_id(host, 7)}"
    assert pack_host(*unpack_host(host)) == host


@pytest.mark.parametrize("text", ["", "0A", "x" * 32, "0A01020300002A9F0000001CBE991A1", " " * 31 + "0", "0A " * 16])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_message_id(text)


@given(st.text(max_size=60) | st.text("0123456789abcdefABCDEF \n", min_size=32, max_size=32), st.binary(max_size=24))
def test_any_text_raises_nothing_else(text: str, host: bytes) -> None:
    for attempt in (lambda: parse_message_id(text), lambda: unpack_host(host)):
        try:
            attempt()
        except ProtocolError:
            pass
