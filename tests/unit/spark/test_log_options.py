"""Options of `duolog-log`: each wrong one is refused with its name, its value and the expected values."""

from __future__ import annotations

import pytest

from duolog.spark.log_options import NAMES, read_options, with_times


def test_options_are_read_in_any_case() -> None:
    found = read_options({"TOPICS": " orders, %RETRY%g", "splitbytes": "4096", "leaseMs": "5", "withTimes": "True"})
    assert (found.topics, found.http, found.split_bytes, found.lease_ms) == (
        ["orders", "..RETRY..g"],
        "127.0.0.1:9644",
        4096,
        5,
    )
    assert found.with_times
    assert read_options({"subscribe": "a"}).lease_ms is None
    offsets = read_options({"topics": "a|b", "endingOffsets": '{"a|b": {"0": -1}}', "startingOffsets": "earliest"})
    assert (offsets.starting, offsets.ending) == ({}, {"a.b": {"0": -1}})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"topic": "a"}, f"unknown option topic; the options are {', '.join(NAMES)}"),
        ({"topics": "a", "path": "/x", "includeHeaders": "true"}, "unknown option includeheaders, path; the options"),
        ({}, "give the option topics"),
        ({"topics": " , "}, "give the option topics"),
        ({"topics": "a", "subscribe": "b"}, "mean the same"),
        ({"topics": "a", "splitBytes": "0"}, "splitBytes=0: expected a whole number of at least 4096"),
        ({"topics": "a", "leaseMs": "10s"}, "leaseMs=10s: expected a whole number of at least 1"),
        ({"topics": "a", "withTimes": "yes"}, "withTimes=yes: expected true or false"),
        ({"topics": "a", "startingOffsets": "latest"}, "startingOffsets=latest is an empty range"),
        ({"topics": "a", "startingOffsets": "first"}, "startingOffsets=first: expected {"),
        ({"topics": "a", "endingOffsets": '{"a": 5}'}, 'endingOffsets={"a": 5}: expected {'),
        ({"topics": "a", "endingOffsets": '{"a": {"0": "5"}}'}, "expected {"),
        ({"topics": "a", "endingOffsets": '{"b": {"0": 5}}'}, "endingOffsets names b, and the topics are a"),
        ({"topics": "a", "endpoint": "http://host"}, "endpoint belongs to the option shared"),
        ({"topics": "a", "region": "eu"}, "region belongs to the option shared"),
        ({"topics": "a", "shared": "s3://b", "directory": "/x"}, "give either shared, to read the object store, or"),
        ({"topics": "a", "shared": "bucket"}, "shared='bucket' is no URL of an object store: use s3://bucket/prefix"),
    ],
)
def test_wrong_option_is_refused_with_what_it_may_be(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^duolog-log: ") as refused:
        read_options(given)
    assert complaint in str(refused.value)


def test_times_are_asked_for_by_name() -> None:
    assert [with_times(given) for given in ({}, {"withTimes": "false"}, {"withtimes": "TRUE"})] == [False, False, True]


def test_an_object_store_has_a_url_and_perhaps_an_endpoint_and_a_region() -> None:
    found = read_options({"topics": "a", "shared": "s3://b/c", "endpoint": "http://host", "region": "eu"}).shared
    assert found is not None
    assert (found.url, found.endpoint, found.region) == ("s3://b/c", "http://host", "eu")
    assert read_options({"topics": "a"}).shared is None
