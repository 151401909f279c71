"""Responses that are encoded element by element have the bytes that kio writes, for each API and version served.

Their errors are found in the whole, and in each element when it is encoded.
"""

from collections import Counter
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from duolog.bridge.kafka import TABLE
from duolog.protocol.kafka.api_messages import ApiKey, encode_body
from duolog.protocol.kafka.response import AnswerTooLarge, Elements, encode_steps, error_codes
from tests.kit.kafka_frames import errors_in

VERSIONS = [
    (api.key, version)
    for api in TABLE.values()
    if api.key not in (ApiKey.PRODUCE, ApiKey.FETCH)
    for version in range(api.min_version, api.max_version + 1)
]


def filled(entity_type: Any, count: int) -> Any:
    return entity_type(**{field.name: value(field.type, count) for field in fields(entity_type)})


def value(type_: Any, count: int) -> Any:
    if get_origin(type_) not in (None, tuple):
        type_ = next(each for each in get_args(type_) if each is not type(None))
    if get_origin(type_) is tuple:
        return tuple(value(get_args(type_)[0], count) for _ in range(count))
    if is_dataclass(type_):
        return filled(type_, count)
    kind = str(type_)
    if type_ is str or any(name in kind for name in ("Name", "GroupId", "TransactionalId")):
        return "text"
    known = {
        "bool": True, "bytes": b"x", "UUID": UUID(int=7), "ErrorCode": ErrorCode.invalid_request,
        "Timedelta": timedelta(0),
        "Datetime": datetime(2024, 1, 1, tzinfo=UTC), "TZAware": datetime(2024, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    return next((given for name, given in known.items() if name.lower() in kind.lower()), 1)


def lazy(entity: Any) -> Any:
    """The same entity, with all arrays of entities in it as `Elements`."""
    values = {}
    for field in fields(entity):
        array = getattr(entity, field.name)
        is_lazy = isinstance(array, tuple) and "tag" not in field.metadata and all(map(is_dataclass, array))
        # A step without an element is none of the array.
        values[field.name] = Elements(each for one in array for each in (None, lazy(one))) if is_lazy else array
    return type(entity)(**values)


def run(steps: Any) -> bytes:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return b"".join(done.value)


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=lambda value: getattr(value, "name", str(value)))
def test_elements_are_written_as_kio_writes_arrays(key: ApiKey, version: int) -> None:
    for count in (0, 2):
        entity = filled(load_response_schema(key, version), count)
        seen: list[Any] = []
        assert run(encode_steps(lazy(entity), 1 << 30, seen.append)) == encode_body(key, version, entity)
        errors = Counter(errors_in(entity))
        assert Counter(error_codes(entity)) == errors
        assert Counter(error for each in seen for error in error_codes(each)) == errors


def test_count_of_many_elements_has_more_than_a_byte() -> None:
    entity = filled(load_response_schema(ApiKey.LIST_GROUPS, 5), 2500)
    assert run(encode_steps(lazy(entity), 1 << 30, lambda _: None)) == encode_body(ApiKey.LIST_GROUPS, 5, entity)


def test_answer_ends_where_it_becomes_too_large() -> None:
    made = []

    def groups() -> Any:
        for number in range(1000):
            made.append(number)
            yield filled(listed, 0)

    response_type: Any = load_response_schema(ApiKey.LIST_GROUPS, 5)
    listed = get_args(next(field for field in fields(response_type) if field.name == "groups").type)[0]
    entity = filled(response_type, 0)
    entity = type(entity)(**{field.name: getattr(entity, field.name) for field in fields(entity)} | {"groups": Elements(groups())})  # fmt: skip # noqa: E501
    with pytest.raises(AnswerTooLarge):
        run(encode_steps(entity, 100, lambda _: None))
    assert len(made) < 10, "nothing is made beyond the limit"
