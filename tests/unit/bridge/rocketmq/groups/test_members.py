"""The table of members equals a simple model, after random heartbeats and closed connections."""

import re
from collections.abc import Container
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.bridge.rocketmq.groups.consumer_group import DIFFERING_MAX, Client
from duolog.bridge.rocketmq.groups.heartbeat_times import CHANNEL_MS, SCAN_INTERVAL_MS
from duolog.bridge.rocketmq.groups.members import GroupMembers
from duolog.bridge.rocketmq.groups.membership_limits import MembershipLimits, TooManyMembers
from duolog.protocol.rocketmq.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)

CLIENT = Client("c", "JAVA", 479)
GROUPS = ("a", "b", "c")
CHANNELS = (1, 2, 3)


def beat(
    *groups: str, producers: tuple[str, ...] = (), model: str = "CLUSTERING", **topics: tuple[int, str]
) -> HeartbeatData:
    subscriptions = [
        SubscriptionData(topic=topic, sub_version=version, sub_string=text) for topic, (version, text) in topics.items()
    ]
    return HeartbeatData(
        client_id="c",
        consumer_data_set=[
            ConsumerData(group_name=name, subscription_data_set=subscriptions, message_model=model) for name in groups
        ],
        producer_data_set=[ProducerData(group_name=name) for name in producers],
    )


LIMITS = {
    "groups_max": 100, "client_groups_max": 50, "subscriptions_max": 2, "subscribed_bytes_max": 1 << 20,
    "client_subscribed_bytes_max": 1 << 20,
}  # fmt: skip


class CheckedMembers(GroupMembers[Any]):
    """Members that check each heartbeat first, as `membership.heart_beat` does."""

    def heartbeat(
        self, channel: Any, client: Client, data: HeartbeatData, mono_ms: int, refusing: Container[str] = ()
    ) -> list[str]:
        self.check_counts(channel, data)
        self.check(channel, data)
        return super().heartbeat(channel, client, data, mono_ms, refusing)


def new(**limits: int) -> GroupMembers[Any]:
    return CheckedMembers(MembershipLimits(**{**LIMITS, **limits}))


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
    assert not members.producers.groups


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
    assert (members._membership_count, members._subscribed_bytes) == (0, 0)
    heartbeat = beat("a", "b", "c", producers=("p",), t=(1, "x" * 150))
    fresh = new()
    fresh.heartbeat(1, CLIENT, heartbeat, 0)
    assert set(members.heartbeat(1, CLIENT, heartbeat, 0)) == set(GROUPS)
    assert {group: list(members.channels(group)) for group in GROUPS} == {group: [1] for group in GROUPS}
    assert (members._membership_count, members._subscribed_bytes) == (4, fresh._subscribed_bytes)
    with pytest.raises(TooManyMembers, match="4 are allowed"):
        members.heartbeat(2, CLIENT, beat(producers=("p",)), 0)


@pytest.mark.parametrize(
    ("limits", "heartbeat", "names"),
    [
        ({"groups_max": 2}, beat("a", "b", "c"), "rocketmq.groups_max=2"),
        ({"groups_max": 2}, beat("a", "b", producers=("p",)), "rocketmq.groups_max=2"),
        ({"client_groups_max": 3}, beat("b", "c", producers=("p", "q")), "rocketmq.client_groups_max=3"),
        ({"subscriptions_max": 2}, beat("b", t=(1, ""), u=(1, ""), v=(1, "")), "rocketmq.subscriptions_max=2"),
        ({"subscribed_bytes_max": 2000}, beat("b", t=(1, "x" * 2000)), "rocketmq.subscribed_bytes_max=2000"),
        ({"client_subscribed_bytes_max": 900}, beat("b", t=(1, "*")), "rocketmq.client_subscribed_bytes_max=900"),
        ({"memberships_max": 3}, beat("b", "c", producers=("p", "q")), "3 are allowed"),
        ({}, beat("b", producers=("p" * 256,)), "255 are allowed"),
        ({}, HeartbeatData(client_id="c" * 256), "255 are allowed"),
    ],
)
def test_heartbeat_over_a_limit_is_refused_whole(limits: dict[str, int], heartbeat: HeartbeatData, names: str) -> None:
    members = new(**limits)
    members.heartbeat(1, CLIENT, beat("a", t=(1, "*")), 0)  # One group, and half a KiB, of the same client.
    with pytest.raises(TooManyMembers, match=re.escape(names)):
        members.heartbeat(1, CLIENT, heartbeat, 0)
    assert list(members.consumers) == ["a"]
    assert not members.producers.groups
    members.closed(1)
    assert (members._membership_count, members._subscribed_bytes) == (0, 0)


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
    ("fields", "changes", "kept"),
    [
        ({"t": (1, "*")}, False, {"t": (1, "*")}),
        ({"t": (2, "*")}, False, {"t": (2, "*")}),  # newer, and the same
        ({"t": (2, "a")}, True, {"t": (2, "a")}),
        ({"t": (0, "a")}, True, {"t": (0, "a")}),  # older, but the only member's
        ({"t": (1, "*"), "u": (1, "*")}, True, {"t": (1, "*"), "u": (1, "*")}),
        ({"u": (1, "*")}, True, {"u": (1, "*")}),
        ({}, True, {}),
    ],
)
def test_subscriptions_are_those_of_the_last_heartbeat(fields: Any, changes: bool, kept: Any) -> None:
    members = new()
    members.heartbeat(1, CLIENT, beat("a", t=(1, "*")), 0)
    assert members.heartbeat(1, CLIENT, beat("a", **fields), 0) == (["a"] if changes else [])
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


def wanted(members: GroupMembers[Any], group: str = "a") -> dict[str, str]:
    return {topic: each.sub_string for topic, each in (members.subscriptions(group) or {}).items()}


def test_newest_subscription_counts_while_a_release_rolls_and_the_older_when_it_is_rolled_back() -> None:
    members = new()
    for number in (1, 2):
        members.heartbeat(number, client(str(number)), beat("a", t=(number, "x")), 0)
    assert members.heartbeat(3, client("3"), beat("a", t=(9, "y"), u=(9, "*")), 0) == ["a"]
    assert (wanted(members), list(members.differing())) == ({"t": "y", "u": "*"}, ["a"])
    assert members.take_differences() == [("a", "3")]
    assert members.heartbeat(1, client("1"), beat("a", t=(1, "x")), 0) == []  # An old member changes nothing.
    assert (wanted(members), members.take_differences()) == ({"t": "y", "u": "*"}, [])
    assert members.client_ids("a") == ["1", "2", "3"]
    members.closed(3)
    assert (wanted(members), list(members.differing())) == ({"t": "x"}, [])


def test_broadcasting_members_have_their_own_subscriptions_and_never_differ() -> None:
    members = new()
    for number, tag in ((1, "x"), (2, "y"), (3, "x")):
        heartbeat = beat("a", model="BROADCASTING", t=(number, tag))
        members.heartbeat(number, client(str(number)), heartbeat, 0, refusing=("a",))
    group = members.consumers["a"]
    own = [group.subscription(number, "t") for number in (1, 2, 3)]
    assert [each.sub_string for each in own if each is not None] == ["x", "y", "x"]
    assert (members.client_ids("a"), list(members.differing())) == (["1", "2", "3"], [])
    assert not members.has_members("a")
    members.heartbeat(4, client("4"), beat("a", t=(1, "z")), 0)
    assert members.has_members("a")
    assert wanted(members) == {"t": "z"}
    assert [each.sub_string for each in map(group.subscription, (1, 4), "tt") if each is not None] == ["x", "z"]


def test_a_group_has_only_so_many_different_subscriptions() -> None:
    members = new()
    for number in range(DIFFERING_MAX):
        members.heartbeat(number, client(str(number)), beat("a", t=(1, f"x{number}")), 0)
    with pytest.raises(TooManyMembers, match="64 different subscriptions"):
        members.heartbeat(99, client("99"), beat("a", t=(1, "y")), 0)
    members.heartbeat(99, client("99"), beat("a", t=(1, "x7")), 0)


SUBSCRIPTIONS = st.tuples(st.sampled_from(CHANNELS), st.sampled_from(["x", "y", "", None]), st.booleans())


@given(st.lists(SUBSCRIPTIONS, max_size=30))
def test_newest_of_the_live_members_counts_after_any_history(history: list[tuple[int, str | None, bool]]) -> None:
    members = new()
    live: dict[int, tuple[str, bool]] = {}
    newest: dict[tuple[str, bool], int] = {}  # The newest version of each subscription since it has members.
    for version, (channel, tag, is_broadcasting) in enumerate(history):
        live.pop(channel, None)
        if tag is None:
            members.closed(channel)
            newest = {each: number for each, number in newest.items() if each in live.values()}
            continue
        heartbeat = beat("a", model="BROADCASTING" if is_broadcasting else "CLUSTERING", t=(version, tag))
        if not tag:
            heartbeat.consumer_data_set[0].subscription_data_set = []
        members.heartbeat(channel, client(str(channel)), heartbeat, 0)
        live[channel] = tag, is_broadcasting
        newest[tag, is_broadcasting] = version
        newest = {each: number for each, number in newest.items() if each in live.values()}
        clustering = [each for each in live.values() if not each[1]]
        counting = {newest[each]: each[0] for each in clustering or live.values() if each[0]}
        assert wanted(members) == ({"t": counting[max(counting)]} if counting else {})
        assert bool(members.differing()) == (len({each for each in clustering if each[0]}) > 1)
    for channel in CHANNELS:
        members.closed(channel)
    assert (members._membership_count, members._subscribed_bytes, len(members.differing())) == (0, 0, 0)


# -- Groups that refuse members who want other messages


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
    members.heartbeat(1, client("first"), beat("a", t=(1, "a || b")), 0, ("a",))
    changed = members.heartbeat(2, client("second"), beat("a", **second), 0, ("a",))
    assert (changed == ["a"], members.is_refused(2, "a")) == (is_member, not is_member)
    assert members.client_ids("a") == (["first", "second"] if is_member else ["first"])
    assert members.take_refusals() == ([] if is_member else [("a", "second")])
    subscriptions = members.subscriptions("a")
    assert subscriptions is not None
    assert list(subscriptions) == ["t"]
    members.heartbeat(2, client("second"), beat("a", **second), 0, ("a",))
    assert members.take_refusals() == []  # It is said once.


@pytest.mark.parametrize("how", ["closed", "left", "agrees", "changed"])
def test_refused_member_comes_in_when_it_can(how: str) -> None:
    members = new()
    members.heartbeat(1, client("first"), beat("a", t=(1, "x")), 0, ("a",))
    members.heartbeat(2, client("second"), beat("a", t=(2, "y")), 0, ("a",))
    members.heartbeat(3, client("third"), beat("a", t=(2, "y")), 0, ("a",))
    if how == "closed":
        assert members.closed(1) == ["a"]
    elif how == "left":
        assert members.unregister(1, consumer_group="a") == ["a"]
    elif how == "agrees":
        members.heartbeat(2, client("second"), beat("a", t=(3, "x")), 0, ("a",))
        assert members.client_ids("a") == ["first", "second"]
        return
    else:  # The only member may want what it likes.
        assert members.heartbeat(1, client("first"), beat("a", t=(4, "y")), 0, ("a",)) == ["a"]
        assert members.client_ids("a") == ["first", "second", "third"]
        return
    assert members.client_ids("a") == ["second", "third"]
    assert members.closed(2) == members.closed(3) == ["a"]
    assert not members.consumers


def test_member_that_begins_to_want_something_else_is_out() -> None:
    members = new()
    for number in (1, 2):
        members.heartbeat(number, client(str(number)), beat("a", t=(1, "x")), 0, ("a",))
    assert members.heartbeat(1, client("1"), beat("a", t=(2, "y")), 0, ("a",)) == ["a"]
    assert members.client_ids("a") == ["2"]
    assert members.heartbeat(2, client("2"), beat("a", t=(3, "y")), 0, ("a",)) == ["a"]
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
            members.heartbeat(channel, client(str(channel)), beat("a", t=(version, tag)), 0, ("a",))
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


# -- Time


def test_silent_channels_are_named_once_their_time_is_up() -> None:
    members = new()
    assert members.heartbeats.next_deadline_mono_ms() is None
    members.heartbeat(1, CLIENT, beat("a"), 0)
    members.heartbeat(2, CLIENT, beat("a"), 5_000)
    assert members.heartbeats.next_deadline_mono_ms() == SCAN_INTERVAL_MS
    silent: dict[int, int] = {}
    mono_ms = 0
    while (deadline := members.heartbeats.next_deadline_mono_ms()) is not None:
        mono_ms = deadline
        for channel in members.heartbeats.silent(mono_ms):
            silent[channel] = mono_ms
            members.closed(channel)
    assert silent == {1: CHANNEL_MS, 2: CHANNEL_MS + SCAN_INTERVAL_MS}
