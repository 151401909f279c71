"""Every header reads what it writes, and names the field that is missing or wrong."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq import headers
from duolog.protocol.rocketmq.header import Header, InvalidField, MissingField
from duolog.protocol.rocketmq.headers import SendRequest, SendRequestV2
from duolog.protocol.rocketmq.request_headers import REQUESTS

ANSWERS: list[type[Header]] = [
    headers.SendAnswer,
    headers.PullAnswer,
    headers.QueryAnswer,
    headers.OffsetAnswer,
    headers.TimestampAnswer,
]
EXAMPLES = settings().max_examples // 5  # The number of examples of each form.
ALL = sorted({*REQUESTS.values(), SendRequestV2, *ANSWERS}, key=lambda form: form.__name__)

# A number of each type fits 32 bits; text is any but "null", which stands for no text in a field that may be absent.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(max_size=10),
    "bool": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
}


def fields_of(form: type[Header]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(form)


def values_of(field: msgspec.structs.FieldInfo) -> st.SearchStrategy[Any]:
    return next(values for name, values in VALUES.items() if name in str(field.type))


@pytest.mark.parametrize("form", ALL)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_round_trip(form: type[Header], data: st.DataObject) -> None:
    header = form(**{field.name: data.draw(values_of(field)) for field in fields_of(form)})
    ext = header.to_ext()
    assert all(isinstance(value, str) for value in ext.values())
    assert form.parse({"bname": "of every request", **ext, "unknown": "x"}) == header


@pytest.mark.parametrize("form", ALL)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_each_mandatory_field_is_missed_by_its_name(form: type[Header], data: st.DataObject) -> None:
    ext = form(**{field.name: data.draw(values_of(field)) for field in fields_of(form)}).to_ext()
    for field in fields_of(form):
        rest = {name: value for name, value in ext.items() if name != field.encode_name}
        if not field.required:
            form.parse(rest)
        elif field.encode_name != "a":  # without "a" it is the other form of SEND
            with pytest.raises(MissingField, match=f"^the custom field <{field.encode_name}> is null$"):
                form.parse(rest)


SEND = {
    "producerGroup": "g",
    "topic": "t",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "0",
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queueId", ""),
        ("queueId", "x"),
        ("queueId", "2147483648"),
        ("bornTimestamp", "9223372036854775808"),
        ("bornTimestamp", "1" * 5000),
        ("flag", "1.5"),
        ("batch", "maybe"),
    ],
)
def test_error_of_a_wrong_value_names_its_field(field: str, value: str) -> None:
    with pytest.raises(InvalidField, match=f"^the custom field <{field}> is illegal"):
        SendRequest.parse({**SEND, field: value})


def test_send_has_two_forms_and_one_meaning() -> None:
    long = SendRequest.parse(SEND)
    short = SendRequest.parse(dict(zip("abcdefgh", SEND.values(), strict=True)))
    assert isinstance(short, SendRequestV2)
    assert msgspec.structs.asdict(short) == msgspec.structs.asdict(long)
    assert short.to_ext()["b"] == long.to_ext()["topic"] == "t"


@given(st.sampled_from(ALL), st.data())
def test_any_text_raises_nothing_else(form: type[Header], data: st.DataObject) -> None:
    wild = st.text(max_size=5) | st.sampled_from(["null", "true", "1e400", "NaN", "-0", "9" * 30])
    ext = {field.encode_name: data.draw(wild) for field in fields_of(form)}
    try:
        form.parse(ext)
    except ProtocolError:
        pass
