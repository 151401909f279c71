"""Two brokers share a log in an object store; the owner is killed, paused, stopped, and loses its disk.

Clients get the addresses of both brokers and nothing else. What was acknowledged under `flush.mode=shared` is there
once, at its offset.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.broker import Broker, BrokerError
from tests.kit.environment import set_environment
from tests.kit.eventually import eventually
from tests.kit.object_proxy import ObjectProxy, ProxyFaults
from tests.kit.object_servers import ObjectServer, moto
from tests.wire.clients.remoting import ask
from tests.wire.clients.shared_pair import BUCKET, WITHIN_S, Pair, http, status, wait_for_role
from tests.wire.clients.takeover_faults import TAKEOVER_WITHIN_S

pytestmark = pytest.mark.usefixtures("duolog_only")

HANDED_OVER_WITHIN_S = 5.0  # From an owner that stops in order to the next acknowledged send.
# The same for a client of a paused owner that nobody wakes up. A client that nobody disconnects waits for 60 s.
PAUSED_WITHIN_S = 10.0
CUT_OFF_WITHIN_S = 10.0  # The same, where the store itself is away.
ROUTE, SEND, PULL = 105, 310, 11
Place = tuple[int, int, bytes]  # Partition, offset, value.


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectServer]:
    with moto() as running:
        running.make_bucket(BUCKET)
        yield running


@pytest.fixture
def pair(tmp_path: Path, store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    set_environment(monkeypatch, store.environment)
    running = Pair(tmp_path, store)
    yield running
    running.close()


class Writer:
    """A producer of librdkafka; `acknowledged` has the place and the value of each record that was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, *, is_idempotent: bool = True) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": is_idempotent})
        self._topic = topic
        self.acknowledged: list[Place] = []

    def write(self, *values: str) -> float:
        """Write these records, and return after how many seconds all were acknowledged."""
        begun_s = time.monotonic()
        self.begin(*values)
        assert self._producer.flush(WITHIN_S) == 0
        return time.monotonic() - begun_s

    def begin(self, *values: str) -> None:
        """Write these records without waiting."""
        for value in values:
            self._producer.produce(self._topic, value.encode(), callback=self._done)
        self._producer.poll(0)

    def _done(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.acknowledged.append((message.partition(), message.offset(), message.value()))


def read_all(bootstrap: str, topic: str, count: int) -> list[Place]:
    """Read a topic from its beginning until `count` records were read, and what follows at once."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[Place] = []
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        message = consumer.poll(0.2 if len(found) < count else 0.5)
        if message is None and len(found) >= count:
            break
        if message is not None and message.error() is None:
            found.append((message.partition(), message.offset(), message.value()))
    consumer.close()
    return found


def send_by_rocketmq(pair: Pair, topic: str, body: bytes) -> tuple[int, int]:
    """Ask the name servers in turn for the route, and send to the owner that it names; return queue and offset."""
    until = time.monotonic() + WITHIN_S
    fields = {"a": "group", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": "", "j": 0, "k": 0}
    while time.monotonic() < until:
        for broker in (pair.owner, pair.standby):
            try:
                route = ask(broker.namesrv, ROUTE, {"topic": topic})
                if route.code != 0:
                    continue
                (owner,) = (each for each in json.loads(route.body)["brokerDatas"] if each["brokerName"] == "duolog")
                sent = ask(owner["brokerAddrs"]["0"], SEND, fields, body)
            except (OSError, ValueError):
                continue
            if sent.code == 0:
                return int(sent.fields["queueId"]), int(sent.fields["queueOffset"])
        time.sleep(0.1)
    raise AssertionError("no send was acknowledged")


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def only_child_of(pid: int) -> int:
    (child,) = eventually("a watchdog", lambda: children_of(pid), lambda found: len(found) == 1, WITHIN_S)
    return child


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists()


def is_open(host: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex((host, port)) == 0


def refusal_of(broker: Broker) -> str:
    """Return the last line of a broker that ends by itself, because an operator must act."""
    assert broker.wait_until_ended(WITHIN_S) == 1
    log = broker.log_tail()
    assert "Traceback" not in log
    return log.splitlines()[-1]


def wal_keys(objects: Any, prefix: str) -> list[str]:
    found = objects.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/wal/")
    return [each["Key"] for each in found["Contents"]]


def test_a_standby_names_the_owner_and_serves_nothing_else(pair: Pair) -> None:
    owner, standby = wait_for_role(pair.owner, "owner"), wait_for_role(pair.standby, "standby")
    assert standby["owner"] == owner["owner"]
    assert standby["owner"]["kafka"] == pair.owner.kafka
    assert (standby["epoch"], owner["epoch"]) == (1, 1)
    assert [http(pair.owner, path)[0] for path in ("/readyz", "/readyz?role=any")] == [200, 200]
    assert [http(pair.standby, path)[0] for path in ("/readyz", "/readyz?role=any", "/healthz")] == [503, 200, 200]
    redirected = json.loads(http(pair.standby, "/api/topics")[1])  # urllib follows the redirection to the owner.
    assert "TBW102" in {each["name"] for each in redirected}
    admin = AdminClient({"bootstrap.servers": pair.standby.kafka})
    admin.create_topics([NewTopic("made", 2)])["made"].result(WITHIN_S)  # Its controller is the owner.
    described = eventually(
        "topic of the standby", lambda: admin.list_topics(timeout=5).topics, lambda found: "made" in found, WITHIN_S
    )
    assert {each.leader for each in described["made"].partitions.values()} == {0}
    eventually("both brokers", lambda: sorted(admin.list_topics(timeout=5).brokers), lambda ids: ids == [0, 1], 20.0)
    assert ask(pair.standby.rocketmq, PULL, {}, b"").code == 14  # SERVICE_NOT_AVAILABLE
    assert "producerGroup" in ask(pair.standby.rocketmq, SEND, {}, b"incomplete").remark  # By the owner, which read it.


@pytest.mark.alone
@pytest.mark.parametrize("is_disk_lost", [False, True], ids=["killed", "killed and its disk lost"])
def test_clients_go_on_with_the_standby_and_nothing_acknowledged_is_lost(pair: Pair, is_disk_lost: bool) -> None:
    writer = Writer(pair.bootstrap, "orders")
    writer.write(*(f"before {number}" for number in range(500)))
    before = send_by_rocketmq(pair, "orders", b"by rocketmq, before")
    pair.owner.kill()
    waited_s = writer.write("after")
    after = send_by_rocketmq(pair, "orders", b"by rocketmq, after")
    assert wait_for_role(pair.standby, "owner")["epoch"] == 2
    writer.write(*(f"later {number}" for number in range(500)))
    if is_disk_lost:
        pair.owner.delete()
    pair.owner.start()
    pair.wait_until_followed()
    expected = sorted([*writer.acknowledged, (*before, b"by rocketmq, before"), (*after, b"by rocketmq, after")])
    assert sorted(read_all(pair.owner.kafka, "orders", len(expected))) == expected
    assert waited_s < TAKEOVER_WITHIN_S


@pytest.mark.alone
def test_clients_of_a_paused_owner_go_on_in_time_and_it_follows_when_it_wakes_up(pair: Pair) -> None:
    """The external watchdog disconnects the clients, whose requests the paused owner would take and never answer."""
    old = Writer(pair.bootstrap, "orders")
    old.write("before")
    pair.pause_owner()
    begun_s = time.monotonic()
    old.begin("while paused")
    wait_for_role(pair.standby, "owner")
    taken_over_s = time.monotonic() - begun_s
    old.write()
    waited_s = time.monotonic() - begun_s
    sent = send_by_rocketmq(pair, "orders", b"by rocketmq, while paused")
    new = Writer(pair.bootstrap, "orders")
    new.write("new client while paused")
    pair.wake_owner()
    old.write("awake")
    pair.wait_until_followed()
    expected = sorted([*old.acknowledged, *new.acknowledged, (*sent, b"by rocketmq, while paused")])
    assert len(expected) == 5
    assert sorted(read_all(pair.owner.kafka, "orders", 5)) == expected
    assert taken_over_s < TAKEOVER_WITHIN_S
    assert waited_s < PAUSED_WITHIN_S
    only_child_of(pair.owner.pid)  # The program was executed anew, with one watchdog.


def test_an_owner_that_was_paused_without_a_standby_goes_on_as_the_owner(pair: Pair) -> None:
    pair.standby.stop()
    writer = Writer(pair.owner.kafka, "orders")
    writer.write("before")
    epoch = status(pair.owner)["epoch"]
    pair.pause_owner()
    writer.begin("while paused")
    host, _, port = pair.owner.kafka.rpartition(":")
    eventually("the port is closed", lambda: is_open(host, int(port)), lambda found: not found, WITHIN_S)
    pair.wake_owner()
    writer.write("awake")
    assert sorted(read_all(pair.owner.kafka, "orders", 3)) == sorted(writer.acknowledged)
    assert (status(pair.owner)["role"], status(pair.owner)["epoch"]) == ("owner", epoch)
    assert ask(pair.owner.namesrv, ROUTE, {"topic": "orders"}).code == 0


def test_the_watchdog_ends_with_its_broker(pair: Pair) -> None:
    watchdogs = [only_child_of(each.pid) for each in (pair.owner, pair.standby)]
    pair.owner.kill()
    pair.standby.stop()
    eventually(
        "watchdogs end", lambda: [is_running(each) for each in watchdogs], lambda found: not any(found), WITHIN_S
    )


@pytest.mark.alone
def test_an_owner_that_is_cut_off_from_the_store_answers_nothing_and_follows_later(pair: Pair) -> None:
    writer = Writer(pair.bootstrap, "orders")
    writer.write("before")
    pair.proxies[0].faults.is_cut = True
    waited_s = writer.write("after")
    assert wait_for_role(pair.standby, "owner")["epoch"] == 2
    assert http(pair.owner, "/api/topics")[0] in (0, 503)
    pair.proxies[0].faults.is_cut = False
    pair.wait_until_followed()
    assert sorted(read_all(pair.bootstrap, "orders", 2)) == sorted(writer.acknowledged)
    assert waited_s < CUT_OFF_WITHIN_S


@pytest.mark.parametrize(
    ("bucket", "faults", "text"),
    [
        (BUCKET, ProxyFaults(ignores_conditions=True), "so two brokers could write at a time: use a store"),
        (
            BUCKET,
            ProxyFaults(refuses_clock=True),
            "403 RequestTimeTooSkewed: the clock of this machine is wrong: set it",
        ),
        ("no-such-bucket", ProxyFaults(), "the bucket does not exist: create it"),
    ],
    ids=["lies", "clock", "no bucket"],
)
def test_a_store_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, store: ObjectServer, monkeypatch: pytest.MonkeyPatch, bucket: str, faults: ProxyFaults, text: str
) -> None:
    set_environment(monkeypatch, store.environment)
    with ObjectProxy(store.endpoint) as proxy:
        proxy.faults = faults
        settings = {"shared.url": f"s3://{bucket}/{tmp_path.name}", "shared.endpoint": proxy.endpoint}
        with pytest.raises(BrokerError, match="ended with status 1") as refused:
            Broker(tmp_path / "a", settings).start()
    assert text in str(refused.value)
    assert f"s3://{bucket}/{tmp_path.name}" in str(refused.value)
    assert "Traceback" not in str(refused.value)
    assert store.environment["AWS_SECRET_ACCESS_KEY"] not in str(refused.value)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:-1] + b"?"], ids=["truncated", "changed"]
)
def test_a_damaged_object_ends_a_standby_with_one_line_and_the_owner_goes_on(
    pair: Pair, store: ObjectServer, damage: Callable[[bytes], bytes]
) -> None:
    writer = Writer(pair.owner.kafka, "orders")
    writer.write("before")
    pair.proxies[1].faults.is_cut = True
    objects, prefix = store.client(), pair.owner.data.parent.name
    read = wal_keys(objects, prefix)
    writer.write("in an object that the standby has not read")
    key = next(each for each in wal_keys(objects, prefix) if each not in read)
    content = objects.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    objects.put_object(Bucket=BUCKET, Key=key, Body=damage(content))
    pair.proxies[1].faults.is_cut = False
    line = refusal_of(pair.standby)
    assert f"s3://{BUCKET}/{prefix}: the object {key.removeprefix(prefix + '/')} is damaged: " in line
    assert "restore this object from a backup or a version of the bucket" in line
    writer.write("after")
    assert status(pair.owner)["role"] == "owner"


def test_a_store_that_begins_to_lie_before_a_takeover_ends_the_new_owner_with_one_line(pair: Pair) -> None:
    pair.proxies[1].faults.ignores_conditions = True
    pair.owner.kill()
    line = refusal_of(pair.standby)
    assert (
        f"s3://{BUCKET}/{pair.owner.data.parent.name}: the object store has no create-if-absent that can be relied on"
        in line
    )
    assert "so two brokers could write at a time: use a store" in line


@pytest.mark.alone
def test_an_owner_that_stops_in_order_hands_over_at_once(pair: Pair) -> None:
    writer = Writer(pair.bootstrap, "orders")
    writer.write("before")
    pair.owner.stop()
    waited_s = writer.write("after")
    assert waited_s < HANDED_OVER_WITHIN_S
    assert sorted(read_all(pair.standby.kafka, "orders", 2)) == sorted(writer.acknowledged)
    pair.owner.start()
    pair.wait_until_followed()
    pair.owner.stop()  # As a standby.
    pair.standby.stop()


def test_a_second_start_on_the_directory_of_an_owner_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    # A start that compared the directory with the store before it had the lock once fenced the running owner.
    settings = {"shared.url": f"file://{tmp_path}/bucket"}
    owner = Broker(tmp_path / "a", settings)
    owner.start()
    try:
        wait_for_role(owner, "owner")
        epoch = status(owner)["epoch"]
        numbers = os.listdir(tmp_path / "bucket" / "nodes")
        with pytest.raises(BrokerError, match="ended with status 1") as refused:
            Broker(tmp_path / "a", settings).start()
        assert f"store.directory: {owner.data}: the data directory is in use by another process" in str(refused.value)
        assert os.listdir(tmp_path / "bucket" / "nodes") == numbers
        time.sleep(0.5)  # Several upload intervals, in which a fence would depose the owner.
        assert (status(owner)["role"], status(owner)["epoch"]) == ("owner", epoch)
    finally:
        owner.kill()
