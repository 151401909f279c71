"""The table of members: compared, over any history of heartbeats and departures, with the plainest model of it."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.rocketmq.members import CHANNEL_MS, SCAN_INTERVAL_MS, Client, Members, TooManyMembers
from protocol.rocketmq.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData

CLIENT = Client("c", "JAVA", 479)
GROUPS = ("a", "b", "c")
CHANNELS = (1, 2, 3)


def beat(*groups: str, producers: tuple[str, ...] = (), **topics: tuple[int, str]) -> HeartbeatData:
    subscriptions = [
        SubscriptionData(topic=topic, sub_version=version, sub_string=text) for topic, (version, text) in topics.items()
    ]
    return HeartbeatData(
        client_id="c",
        consumer_data_set=[ConsumerData(group_name=name, subscription_data_set=subscriptions) for name in groups],
        producer_data_set=[ProducerData(group_name=name) for name in producers],
    )


def new(groups_max: int = 100, subscriptions_max: int = 2, **limits: int) -> Members[Any]:
    return Members(groups_max=groups_max, subscriptions_max=subscriptions_max, **limits)


# -- Who is in which group


STEPS = st.one_of(
    st.tuples(st.just("beat"), st.sampled_from(CHANNELS), st.sets(st.sampled_from(GROUPS))),
    st.tuples(st.just("leave"), st.sampled_from(CHANNELS), st.sampled_from(GROUPS)),
    st.tuples(st.just("close"), st.sampled_from(CHANNELS), st.none()),
)


@given(st.lists(STEPS, max_size=30))
def test_groups_have_whom_the_history_says(history: list[tuple[str, int, Any]]) -> None:
    members = new()
    model: dict[str, list[int]] = {group: [] for group in GROUPS}
    for what, channel, groups in history:
        before = {group: list(channels) for group, channels in model.items()}
        if what == "beat":
            changed = members.heartbeat(channel, CLIENT, beat(*groups, producers=("p",), t=(1, "*")), 0)
            for group in groups:
                if channel not in model[group]:
                    model[group].append(channel)
        elif what == "leave":
            changed = members.unregister(channel, consumer_group=groups)
            model[groups] = [each for each in model[groups] if each != channel]
        else:
            changed = members.closed(channel)
            model = {group: [each for each in each_of if each != channel] for group, each_of in model.items()}
        assert set(changed) == {group for group in GROUPS if model[group] != before[group]}
        assert {group: list(members.channels(group)) for group in GROUPS} == model
        assert {group for group in GROUPS if members.has_members(group)} == {group for group in GROUPS if model[group]}
    for channel in CHANNELS:
        members.closed(channel)
    assert not members.consumers
    assert not members.producers


@given(st.lists(STEPS, max_size=30))
def test_sums_are_given_back(history: list[tuple[str, int, Any]]) -> None:
    """Whatever came and went, there is as much room as in the beginning."""
    members = new(memberships_max=4, subscribed_bytes_max=2000)
    for what, channel, groups in history:
        if what == "beat":
            with suppress(TooManyMembers):
                members.heartbeat(channel, CLIENT, beat(*groups, producers=("p",), t=(1, "x" * len(groups))), 0)
        elif what == "leave":
            members.unregister(channel, consumer_group=groups, producer_group="p")
        else:
            members.closed(channel)
    for channel in CHANNELS:
        members.closed(channel)
    members.heartbeat(1, CLIENT, beat("a", "b", "c", producers=("p",), t=(1, "x" * 150)), 0)


@pytest.mark.parametrize(
    "told",
    [
        beat("a", "b", "c"),
        beat("a", producers=("p", "q")),
        beat("a", t=(1, "x" * 2000)),
        beat("a", producers=("p" * 256,)),
        HeartbeatData(client_id="c" * 256),
    ],
)
def test_what_exceeds_a_bound_is_refused_whole(told: HeartbeatData) -> None:
    members = new(memberships_max=2, subscribed_bytes_max=2000)
    with pytest.raises(TooManyMembers, match="are allowed"):
        members.heartbeat(1, CLIENT, told, 0)
    assert not members.consumers
    assert not members.producers


def test_client_with_two_channels_is_listed_once() -> None:
    members = new()
    for channel in CHANNELS:
        members.heartbeat(channel, CLIENT, beat("a"), 0)
    assert members.client_ids("a") == ["c"]


def test_groups_are_known_to_families_by_their_kafka_spelling() -> None:
    members = new()
    members.heartbeat(1, CLIENT, beat("%RETRY%a"), 0)
    assert members.has_members("..RETRY..a")
    members.closed(1)
    assert not members.has_members("..RETRY..a")


# -- Subscriptions


@pytest.mark.parametrize(
    ("told", "changes", "kept"),
    [
        ({"t": (1, "*")}, False, {"t": (1, "*")}),
        ({"t": (2, "*")}, False, {"t": (2, "*")}),  # newer, and the same
        ({"t": (2, "a")}, True, {"t": (2, "a")}),
        ({"t": (0, "a")}, False, {"t": (1, "*")}),  # older: it is another member's, or came late
        ({"t": (1, "*"), "u": (1, "*")}, True, {"t": (1, "*"), "u": (1, "*")}),
        ({"u": (1, "*")}, True, {"u": (1, "*")}),
        ({}, True, {}),
    ],
)
def test_subscriptions_are_those_of_the_last_heartbeat(told: Any, changes: bool, kept: Any) -> None:
    members = new()
    members.heartbeat(1, CLIENT, beat("a", t=(1, "*")), 0)
    assert members.heartbeat(1, CLIENT, beat("a", **told), 0) == (["a"] if changes else [])
    subscriptions = members.subscriptions("a")
    assert subscriptions is not None
    assert {topic: (each.sub_version, each.sub_string) for topic, each in subscriptions.items()} == kept


def test_heartbeat_without_subscriptions_keeps_them() -> None:
    members = new()
    members.heartbeat(1, CLIENT, beat("a", t=(1, "*")), 0)
    short = beat("a")
    short.without_sub = True
    assert members.heartbeat(1, CLIENT, short, 0) == []
    assert list(members.subscriptions("a") or ()) == ["t"]


# -- Members that want different messages


def client(name: str) -> Client:
    return Client(name, "JAVA", 479)


@pytest.mark.parametrize(
    ("second", "is_member"),
    [
        ({"t": (9, "a || b")}, True),
        ({"t": (9, "b||a")}, True),  # the same, in other words
        ({"t": (9, "a")}, False),
        ({"t": (9, "*")}, False),
        ({"u": (9, "a || b")}, False),
        ({"t": (9, "a || b"), "u": (9, "*")}, False),
        ({}, True),  # it names its queues by itself
    ],
)
def test_member_that_wants_other_messages_is_refused(second: Any, is_member: bool) -> None:
    members = new()
    members.heartbeat(1, client("first"), beat("a", t=(1, "a || b")), 0)
    changed = members.heartbeat(2, client("second"), beat("a", **second), 0)
    assert (changed == ["a"], members.is_refused(2, "a")) == (is_member, not is_member)
    assert members.client_ids("a") == (["first", "second"] if is_member else ["first"])
    assert members.take_refusals() == ([] if is_member else [("a", "second")])
    subscriptions = members.subscriptions("a")
    assert subscriptions is not None
    assert list(subscriptions) == ["t"]
    members.heartbeat(2, client("second"), beat("a", **second), 0)
    assert members.take_refusals() == []  # It is said once.


@pytest.mark.parametrize("how", ["closed", "left", "agrees", "changed"])
def test_refused_member_comes_in_when_it_can(how: str) -> None:
    members = new()
    members.heartbeat(1, client("first"), beat("a", t=(1, "x")), 0)
    members.heartbeat(2, client("second"), beat("a", t=(2, "y")), 0)
    members.heartbeat(3, client("third"), beat("a", t=(2, "y")), 0)
    if how == "closed":
        assert members.closed(1) == ["a"]
    elif how == "left":
        assert members.unregister(1, consumer_group="a") == ["a"]
    elif how == "agrees":
        members.heartbeat(2, client("second"), beat("a", t=(3, "x")), 0)
        assert members.client_ids("a") == ["first", "second"]
        return
    else:  # The only member may want what it likes.
        assert members.heartbeat(1, client("first"), beat("a", t=(4, "y")), 0) == ["a"]
        assert members.client_ids("a") == ["first", "second", "third"]
        return
    assert members.client_ids("a") == ["second", "third"]
    assert members.closed(2) == members.closed(3) == ["a"]
    assert not members.consumers


def test_member_that_begins_to_want_something_else_is_out() -> None:
    members = new()
    for number in (1, 2):
        members.heartbeat(number, client(str(number)), beat("a", t=(1, "x")), 0)
    assert members.heartbeat(1, client("1"), beat("a", t=(2, "y")), 0) == ["a"]
    assert members.client_ids("a") == ["2"]
    assert members.heartbeat(2, client("2"), beat("a", t=(3, "y")), 0) == ["a"]
    assert sorted(members.client_ids("a")) == ["1", "2"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["beat", "leave", "close"]), st.sampled_from(CHANNELS), st.sampled_from("xy")),
        max_size=30,
    )
)
def test_members_agree_and_nobody_waits_for_an_empty_group(history: list[tuple[str, int, str]]) -> None:
    members = new(memberships_max=6, subscribed_bytes_max=4000)
    wants: dict[int, str] = {}
    for version, (what, channel, tag) in enumerate(history):
        if what == "beat":
            members.heartbeat(channel, client(str(channel)), beat("a", t=(version, tag)), 0)
            wants[channel] = tag
        else:
            wants.pop(channel, None)
            if what == "leave":
                members.unregister(channel, consumer_group="a")
            else:
                members.closed(channel)
        inside = list(members.channels("a"))
        assert len({wants[each] for each in inside}) == bool(wants)
        assert {each for each in CHANNELS if members.is_refused(each, "a")} == wants.keys() - set(inside)
        subscriptions = members.subscriptions("a") or {}
        assert {each.sub_string for each in subscriptions.values()} == {wants[each] for each in inside}
    for channel in CHANNELS:
        members.closed(channel)
    assert (members._membership_count, members._subscribed_bytes) == (0, 0)


# -- Bounds and time


def test_bounds_are_named_and_nothing_is_taken() -> None:
    members = new(groups_max=2)
    members.heartbeat(1, CLIENT, beat("a", producers=("p",)), 0)
    with pytest.raises(TooManyMembers, match=r"rocketmq\.groups_max=2"):
        members.heartbeat(1, CLIENT, beat("b"), 0)
    with pytest.raises(TooManyMembers, match=r"rocketmq\.subscriptions_max=2"):
        members.heartbeat(1, CLIENT, beat("a", t=(1, ""), u=(1, ""), v=(1, "")), 0)
    assert list(members.consumers) == ["a"]


def test_silent_channels_are_named_once_their_time_is_up() -> None:
    members = new()
    assert members.next_deadline_mono_ms() is None
    members.heartbeat(1, CLIENT, beat("a"), 0)
    members.heartbeat(2, CLIENT, beat("a"), 5_000)
    assert members.next_deadline_mono_ms() == SCAN_INTERVAL_MS
    silent: dict[int, int] = {}
    mono_ms = 0
    while (deadline := members.next_deadline_mono_ms()) is not None:
        mono_ms = deadline
        for channel in members.silent(mono_ms):
            silent[channel] = mono_ms
            members.closed(channel)
    assert silent == {1: CHANNEL_MS, 2: CHANNEL_MS + SCAN_INTERVAL_MS}
