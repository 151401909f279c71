"""Proves that a stored record which raises when it is processed harms nothing else: background duties set it aside with
its place, go on with the others, and the next start does so, too.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import pytest

from duolog.bridge.monitoring.poison import KEPT_MAX, PoisonRecords
from duolog.bridge.records import codec, frame_formats
from duolog.bridge.records.broker import ClusterNamed
from duolog.bridge.records.codec import encode
from duolog.bridge.records.groups import CommittedOffset, GroupOffsetsCommitted
from duolog.bridge.rocketmq.retry.redrive import redrive
from duolog.delay.recurring import (
    TIME_MAX_MS,
    BadSchedule,
    Burst,
    Cron,
    Schedule,
)
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.messages import message, properties
from duolog.store.entry import EntrySlot
from duolog.store.errors import Corruption, DiskFull, HalfApplied
from duolog.store.log.control import Control, ControlKind
from duolog.store.state_log import StateLog
from duolog.store.unit import Frame, StateRecord
from tests.kit.core import ManualCore
from tests.unit.bridge.data.test_schedules import ScheduleBench, recurring
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies
from tests.unit.bridge.rocketmq.consuming.test_expired import dead, stored
from tests.unit.bridge.rocketmq.pop.test_pop_message import INVISIBLE_MS, bodies_of, nothing, pop
from tests.unit.bridge.rocketmq.producing.test_half_messages import CHECK_MAX, INTERVAL, CheckBackBroker, send_half
from tests.unit.bridge.rocketmq.retry.test_send_back import fail_for_good

SECOND = 1000
BAD = b"\xff\xfe\xfd\xfc"
SLOT = EntrySlot(4096, 7, 1)


def raises(*_: Any) -> Any:
    raise ZeroDivisionError("poison")


def publish_bad(broker: RocketMQBroker, name: str, body: bytes) -> None:
    """Store a message whose properties are not UTF-8, as older versions took it in a batch."""
    topic = broker.topics.by_rocketmq_name(name) or broker.topic(name)
    with bad_properties():
        broker.publish(topic, body, tag="AAAA")


@contextmanager
def bad_properties() -> Iterator[None]:
    """Have what is written say BAD where it says AAAA."""
    pieces_of = message.Writer.pieces

    def pieces(self: Any, each: Any) -> Any:
        given = pieces_of(self, each)
        if isinstance(given, bytes | bytearray | memoryview):
            return bytes(given).replace(b"AAAA", BAD)
        return [bytes(piece).replace(b"AAAA", BAD) for piece in given]

    message.Writer.pieces = pieces  # type: ignore[method-assign]
    try:
        yield
    finally:
        message.Writer.pieces = pieces_of  # type: ignore[method-assign]


# -- The list


@pytest.mark.slow
def test_a_record_is_reported_once_and_the_list_is_bounded() -> None:
    poison = PoisonRecords()
    for number in range(KEPT_MAX + 5):
        for _ in range(2):
            poison.set_aside("frame", f"position {number}", ValueError("x" * 10_000))
    assert poison.counts == {"frame": KEPT_MAX + 5}
    kept = [*poison.all()]
    assert (len(kept), kept[0].place, kept[-1].place) == (KEPT_MAX, "position 5", f"position {KEPT_MAX + 4}")
    assert kept[0].error.startswith("ValueError: xxx")
    assert len(kept[0].error) == 300


def test_acknowledged_records_stay_acknowledged_and_are_not_reported_again(caplog: pytest.LogCaptureFixture) -> None:
    core = ManualCore()
    core.store.append([StateRecord(b"\xc1")], core.clock.now_ms())
    core.settle()
    core = ManualCore(disk=core.disk.after_kill())  # The replay sets it aside.
    core.poison_records.set_aside("frame", "position 2", ValueError("x"))
    assert core.poison_records.acknowledge("frame", "position 1", core.clock.now_ms())[0] == 0
    assert core.poison_records.acknowledge("state record", None, core.clock.now_ms())[0] == 1
    assert [each.is_acknowledged for each in core.poison_records.all()] == [True, False]
    core.settle()
    killed = ManualCore(disk=core.disk.after_kill())
    killed.poison_records.save(killed.clock.now_ms(), 0)
    caplog.clear()
    killed.store.close(killed.clock.now_ms())
    stopped = ManualCore(disk=killed.disk.after_kill())
    for again in (killed, stopped):
        rows = {each.kind: each.is_acknowledged for each in again.poison_records.all()}
        assert rows == {"state record": True, "frame": False}
    assert "state record" not in caplog.text
    assert stopped.poison_records.acknowledge(None, None, stopped.clock.now_ms())[0] == 1
    assert stopped.poison_records.acknowledge(None, None, stopped.clock.now_ms())[0] == 0


@pytest.mark.parametrize("error", [DiskFull(), HalfApplied(), MemoryError()])
def test_what_says_nothing_about_the_record_is_raised_again(error: Exception) -> None:
    poison = PoisonRecords()
    with pytest.raises(type(error)):
        poison.set_aside("frame", "position 1", error)
    assert not poison.counts


# -- The next start


def test_replay_goes_on_behind_what_raises() -> None:
    poison = PoisonRecords()
    state_log = StateLog(codec, poison)
    seen: list[Any] = []
    state_log.own(ClusterNamed, raises)
    state_log.own(ClusterNamed, lambda record, slot: seen.append(record))
    state_log.on_extra(9, raises)
    state_log.on_frame(raises)
    state_log.on_frame(lambda *_: seen.append("frame"))
    (payload,) = [*_payloads(ClusterNamed("x"))]
    state_log.replay_state(payload, SLOT)
    state_log.replay_frame(1 << 16 | 3, SLOT, 2, 1, memoryview(b"body"), b"\x09")
    assert seen == [ClusterNamed("x"), "frame"]
    assert [each.place for each in poison.all()] == [
        "position 4096, ClusterNamed",
        "position 4096, topic number 1, queue 3, offset 7",
    ]


BAD_STATE = {
    "no msgpack": b"\xc1",
    "nothing": b"",
    "no tag": b"\x90",
    "a field of another type": msgspec.msgpack.encode([20, "group", "no positions", 1]),
    "a field is missing": msgspec.msgpack.encode([20]),
    "text that is not UTF-8": b"\x92\x01\xa2\xff\xfe",
}


@pytest.mark.parametrize("payload", BAD_STATE.values(), ids=BAD_STATE)
def test_state_record_that_does_not_decode_is_set_aside_and_the_rest_of_its_unit_is_replayed(payload: bytes) -> None:
    core = ManualCore()
    topic = core.topic("orders", 1)
    good = encode(GroupOffsetsCommitted("g", [CommittedOffset(topic.key(0), 7)], 1))
    frame = Frame(topic.queues[0], frame_formats.ROCKETMQ, b"body", 1)
    core.store.append([StateRecord(payload), frame, StateRecord(good)], core.clock.now_ms())
    core.settle()
    again = ManualCore(disk=core.disk.after_kill())
    assert again.poison_records.counts == {"state record": 1}
    assert again.group_offsets.all_of("g")[topic.key(0)].offset == 7
    assert again.topic("orders").queues[0].end_offset == 1


def test_state_record_of_a_newer_version_refuses_the_start() -> None:
    core = ManualCore()
    core.store.append([StateRecord(msgspec.msgpack.encode([250, "of tomorrow"]))], core.clock.now_ms())
    core.settle()
    with pytest.raises(Corruption, match=r"tag 250, which this version does not know: .* start that version"):
        ManualCore(disk=core.disk.after_kill())


def test_list_survives_a_kill_and_a_checkpoint_that_no_longer_has_the_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "bridge")  # A worker of pytest-xdist cannot send a report with lone surrogates.
    core = ManualCore()
    core.store.append([StateRecord(b"\xc1")], core.clock.now_ms())
    core.poison_records.set_aside("schedule", "nightly \udcff", ValueError("\udcff" * 1000))
    core.poison_records.save(core.clock.now_ms(), 0)
    core.settle()
    core = ManualCore(disk=core.disk.after_kill())
    expected = {("schedule", "nightly ?"), ("state record", next(iter(core.poison_records.all())).place)}
    for _ in range(3):
        assert {(each.kind, each.place) for each in core.poison_records.all()} == expected
        assert core.poison_records.counts == {"schedule": 1, "state record": 1}
        assert core.poison_records.next_deadline_mono_ms() is not None or core.store.recovery.checkpoint_position > 0
        core.store.checkpoint(0)
        core.settle()
        core = ManualCore(disk=core.disk.after_kill())
        assert core.store.recovery.checkpoint_position > 0


def test_list_is_saved_again_when_the_log_refused_it() -> None:
    core = ManualCore()
    core.poison_records.set_aside("schedule", "nightly", ValueError())
    core.store.write_state.refusal = DiskFull("full")
    with pytest.raises(DiskFull):
        core.poison_records.save(0, 5_000)
    assert core.poison_records.next_deadline_mono_ms() == 6_000
    core.store.write_state.refusal = None
    core.poison_records.save(0, 6_000)
    assert core.poison_records.next_deadline_mono_ms() is None


def test_error_of_the_disk_at_replay_says_nothing_about_the_record() -> None:
    with pytest.raises(OSError, match="too many"):
        PoisonRecords().set_aside("state record", "position 1", OSError(24, "too many"))


def test_messages_of_a_topic_whose_record_is_poison_are_found_under_another_name() -> None:
    core = ManualCore()
    lost = core.store.queue(77 << 16 | 2)
    core.store.append(
        [StateRecord(msgspec.msgpack.encode([10, 77])), Frame(lost, frame_formats.ROCKETMQ, b"body", 1)], 1
    )
    core.settle()
    again = ManualCore(disk=core.disk.after_kill())
    found = again.topics.get("recovered-77")
    assert found is not None
    assert (found.queue_count, found.queues[2].end_offset) == (3, 1)
    assert again.topic("next").number == 78
    again.topics.delete(found, 2)
    again.settle()
    assert ManualCore(disk=again.disk.after_kill()).topics.get("recovered-77") is None


def test_control_entry_that_does_not_decode_is_set_aside() -> None:
    core = ManualCore()
    core.store.appender.append_unit([Control(ControlKind.QUEUE, 1 << 16, b"short")], 1)
    core.settle()
    again = ManualCore(disk=core.disk.after_kill())
    assert again.poison_records.counts == {"control entry": 1}


def test_checkpoint_whose_owner_raises_does_not_prevent_the_next_one() -> None:
    core = ManualCore()
    is_bad = True

    def snapshot() -> Any:
        return [cast(Any, object())] if is_bad else []

    core.state_log.on_snapshot(snapshot)
    with pytest.raises(TypeError):
        core.store.checkpoint(0)
    is_bad = False
    core.store.checkpoint(0)
    core.settle()
    assert ManualCore(disk=core.disk.after_kill()).store.recovery.checkpoint_position > 0


def _payloads(record: ClusterNamed) -> Iterator[bytes]:
    state_log = StateLog(codec, PoisonRecords())
    state_log.on_snapshot(lambda: [record])
    yield from state_log.snapshot()


# -- Schedules


def test_stored_schedule_whose_run_raises_is_set_aside_and_the_others_run() -> None:
    bench = ScheduleBench()
    topic = bench.topic()
    every_second = Schedule(Cron("* * * * * *"))
    endless = Schedule(Cron("* * * * * *"), burst=Burst(TIME_MAX_MS, 0, 1))
    for name, schedule in (("a", every_second), ("b", every_second)):
        bench.schedules.register(name, schedule, recurring(topic, name.encode()), bench.clock.now_ms())
    bad = bench.schedules.state.get("a")
    assert bad is not None
    bad.schedule = endless  # As older versions took it.
    for _ in range(3):
        bench.pass_until(bench.clock.now_ms() + SECOND)
    assert [each.value for each in bench.records(topic)] == [b"b"] * 3
    assert [(each.kind, each.place) for each in bench.poison_records.all()] == [("schedule", "a")]
    assert bench.schedules.remove("a", bench.clock.now_ms()).outcome.value == "removed"
    bench.settle()
    again = ScheduleBench(bench.disk.after_kill(), bench.clock.now_ms())
    again.pass_until(again.clock.now_ms() + SECOND)
    assert again.names() == ["b"]


def test_schedule_that_would_start_beyond_all_calendars_is_refused() -> None:
    bench = ScheduleBench()
    schedule = Schedule(Cron("* * * * * *"), burst=Burst(TIME_MAX_MS, 0, 1))
    with pytest.raises(BadSchedule, match="delay 250000000000000 ms after each run"):
        bench.schedules.register("a", schedule, recurring(bench.topic()), bench.clock.now_ms())


# -- Delayed messages


def test_delayed_message_that_raises_is_set_aside_and_the_others_are_delivered(
    broker: RocketMQBroker, client: Client
) -> None:
    broker.topic()
    for number in range(9):
        client.send(body=b"%d" % number, properties="TIMER_DELAY_MS\x015000\x02")
    deliveries = broker.delivery_frames.deliveries

    def fails(topic: Any, queue_id: int, form: int, frames: Any, dues_ms: Any, now_ms: int) -> Any:
        if any(_body(frame) == b"4" for frame in frames):
            raise ZeroDivisionError
        return deliveries(topic, queue_id, form, frames, dues_ms, now_ms)

    broker.delivery_frames.deliveries = fails  # type: ignore[method-assign]
    broker.pass_ms(6000)
    while (deadline_ms := broker.delays.next_deadline_ms()) is not None and deadline_ms <= broker.clock.now_ms():
        broker.delays.run(broker.clock.now_ms(), 0)
    broker.settle()
    assert sorted(bodies(client.pull(0))) == [b"%d" % number for number in range(9) if number != 4]
    ((kind, place, *_),) = broker.poison_records.all()
    assert kind == "delayed message"
    assert place.startswith("position ")
    assert len(broker.delays.timers) == 0


def _body(frame: Any) -> bytes:
    return bytes(message.decode(memoryview(bytes(frame))).body)


# -- Half messages


@pytest.mark.parametrize("step", ["_ask", "_abandon"])
def test_half_message_that_raises_at_each_look_ends_at_the_last(step: str) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    send_half(client)
    setattr(broker.checks, step, raises)
    for _ in range(20 * (CHECK_MAX + 2)):
        client.beat("shop")
        broker.wait(INTERVAL)
    assert len(broker.halves.state) == 0
    assert [each.kind for each in broker.poison_records.all()] == ["half message"]


# -- Properties that are not UTF-8


def test_repaired_properties_are_what_java_reads() -> None:
    raw = b"TAGS\x01" + BAD + b"\x02K\x01v\x02"
    assert properties.parse(properties.repaired(raw)) == {"TAGS": "\ufffd" * 4, "K": "v"}
    assert properties.repaired(b"K\x01\xc3\xa4\x02") == b"K\x01\xc3\xa4\x02"


def test_dead_letter_with_properties_that_are_not_utf8_goes_back(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    fail_for_good(client, b"a")
    publish_bad(broker, "%DLQ%billing", b"bad")
    fail_for_good(client, b"b")
    count, _ = asyncio.run(redrive(broker.rocketmq_context, "billing", "retry"))
    broker.settle()
    assert count == 3
    assert [bytes(each.body) for each in stored(broker, "%RETRY%billing")] == [b"a", b"bad", b"b"]


def test_dead_letter_that_raises_is_passed_over(
    broker: RocketMQBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topic()
    fail_for_good(client, b"a", b"b")
    monkeypatch.setattr("duolog.bridge.rocketmq.retry.redrive.copy_of", raises)
    assert asyncio.run(redrive(broker.rocketmq_context, "billing", "retry"))[0] == 0
    assert [each.place for each in broker.poison_records.all()] == [
        "%DLQ%billing queue 0, offset 0", "%DLQ%billing queue 0, offset 1"
    ]  # fmt: skip


def test_popped_message_with_properties_that_are_not_utf8_comes_back(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a")
    publish_bad(broker, "orders", b"bad")
    assert bodies_of(pop(client)) == [b"a", b"bad"]
    broker.pass_ms(INVISIBLE_MS)
    assert bodies_of(pop(client)) == [b"a", b"bad"]


def test_popped_message_that_raises_does_not_hold_up_the_others(
    broker: RocketMQBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.publish(broker.topic(), b"a")
    assert bodies_of(pop(client)) == [b"a"]
    with monkeypatch.context() as patch:
        patch.setattr("duolog.bridge.rocketmq.pop.revived_copies.copy_of", raises)
        broker.pass_ms(INVISIBLE_MS)
    assert nothing(client)
    assert [(each.kind, each.place) for each in broker.poison_records.all()] == [
        ("popped message", "orders queue 0, offset 0")
    ]
    assert len(broker.rocketmq_context.pop.checkpoints) == 0


@pytest.mark.parametrize("reads", ["pull", "pop"])
def test_expired_message_with_properties_that_are_not_utf8_is_a_dead_letter(
    broker: RocketMQBroker, client: Client, reads: str
) -> None:
    broker.topic(message_ttl_ms="1000")
    publish_bad(broker, "orders", b"bad")
    broker.pass_ms(2000)
    broker.publish(broker.topic(), b"fresh")
    if reads == "pull":
        assert bodies(client.pull(0)) == [b"fresh"]
    else:
        assert bodies_of(pop(client)) == [b"fresh"]
    assert dead(broker) == [b"bad"]


def test_expired_message_that_raises_is_given_as_it_is(
    broker: RocketMQBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.publish(broker.topic(message_ttl_ms="1000"), b"a")
    broker.pass_ms(2000)
    monkeypatch.setattr("duolog.bridge.rocketmq.consuming.expired.expired_copy", raises)
    answer = client.pull(0)
    assert (answer.code, bodies(answer)) == (ResponseCode.SUCCESS, [b"a"])
    assert [each.kind for each in broker.poison_records.all()] == ["expired message"]


@pytest.fixture
def broker() -> RocketMQBroker:
    return RocketMQBroker()


@pytest.fixture
def client(broker: RocketMQBroker) -> Client:
    return broker.connect()
