"""Property strings read as the official Java implementation reads them; shortcuts agree with the full parse."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.messages import properties

# `MessageDecoder.string2messageProperties` of org.apache.rocketmq:rocketmq-common:5.5.0.
OF_JAVA: list[tuple[str, dict[str, str]]] = [
    ("a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
    ("a\x01\x02c\x01d\x02", {"c": "d"}),
    ("\x01b\x02c\x01d\x01e\x02", {"c": "d\x01e"}),
    ("ab\x02c\x01d\x02c\x01e\x02", {"c": "e"}),
    ("c\x01d\x02c\x01\x02", {"c": "d"}),
    ("x\x01", {}),
    ("\x02\x02a\x01b", {"a": "b"}),
]

names = st.text("abcTAGS", min_size=1, max_size=5)
values = st.text("abcTAGS é😀", min_size=1, max_size=5)
tables = st.dictionaries(names, values, max_size=5)
# Few letters, so that names recur inside of values and pairs come broken in each way.
raws = st.text("\x01\x02abT", max_size=30)


@pytest.mark.parametrize(("raw", "table"), OF_JAVA)
def test_strings_are_read_as_java_does(raw: str, table: dict[str, str]) -> None:
    assert properties.parse(raw) == table
    assert properties.parse(raw.encode()) == table


@given(tables)
def test_round_trip(table: dict[str, str]) -> None:
    assert properties.parse(properties.encode(table)) == table


@pytest.mark.parametrize("table", [{"a": ""}, {"": "a"}, {"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}, {"a": "\x02"}])
def test_what_would_be_read_otherwise_is_not_written(table: dict[str, str]) -> None:
    with pytest.raises(ProtocolError):
        properties.encode(table)


@given(raws, names | st.sampled_from("abT"))
def test_get_finds_what_parse_finds(raw: str, name: str) -> None:
    value = properties.parse(raw).get(name)
    assert properties.get(raw.encode(), name) == value
    assert properties.finder(name)(raw.encode()) == (None if value is None else value.encode())


@pytest.mark.slow
@given(raws | tables.map(properties.encode), st.dictionaries(names, st.none() | values, max_size=3))
def test_set_many_sets_and_removes(raw: str, changes: dict[str, str | None]) -> None:
    expected = {name: value for name, value in {**properties.parse(raw), **changes}.items() if value is not None}
    assert properties.parse(properties.set_many(raw.encode(), changes)) == expected


@given(raws, names | st.sampled_from("abT"))
def test_without_removes_all_pairs_of_a_name_and_nothing_else(raw: str, name: str) -> None:
    expected = {key: value for key, value in properties.parse(raw).items() if key != name}
    assert properties.parse(properties.without(raw.encode(), name)) == expected


@given(raws, tables)
def test_join_is_as_if_all_were_set(raw: str, added: dict[str, str]) -> None:
    joined = properties.join(raw.encode(), properties.encode(added).encode())
    assert properties.parse(joined) == {**properties.parse(raw), **added}


@given(st.binary(max_size=30), names)
def test_any_bytes_raise_nothing_else(raw: bytes, name: str) -> None:
    for attempt in (
        lambda: properties.parse(raw),
        lambda: properties.get(raw, name),
        lambda: properties.set_many(raw, {name: "x"}),
    ):
        try:
            attempt()
        except ProtocolError:
            pass


def test_removing_a_name_that_is_there_often_takes_time_in_proportion() -> None:
    begun = time.process_time()
    assert properties.without(b"TRAN_MSG\x01true\x02" * 70_000, properties.TRAN_MSG) == b""
    assert time.process_time() - begun < 0.5  # 10 ms; where each pair copied the rest it was 2.6 s.
