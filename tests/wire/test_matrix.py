"""One message, every reader: what any client wrote is what every client reads, at the same offset of the same queue.

Each writer fills a topic of its own by every way to send that it has, with every compression, bodies from nothing to
the limit. Then each reader reads all topics, and every message is compared: queue, offset, order, body, null or empty,
key, headers, tags, timestamp. The names of the topics are valid in the writer's protocol only, so that readers of the
other protocol get the escaped form. A cell of the matrix has the number of messages that were compared;
docs/reference/clients.md shows the table of one run (`pytest tests/wire/test_matrix.py --rewrite` writes it).
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.kit.peers import Peers
from tests.wire.clients import remoting, topics
from tests.wire.clients.everyone import READERS, WRITERS, ClientProtocol, Reach, Role
from tests.wire.clients.jvm import Agents
from tests.wire.clients.message import Message, Position, Seen, fingerprint
from tests.wire.clients.roles import Reader, Writer
from tests.wire.clients.spark import Spark

CLIENTS = Path(__file__).parents[2] / "docs/reference/clients.md"
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
QUEUES = 3
KIB, MIB = 1 << 10, 1 << 20
BODY_BYTES_MAX = 4 * MIB
TOPIC_CONFIG = {"max.message.bytes": str(BODY_BYTES_MAX + 64 * KIB)}  # A batch is more than its body.
SENDS_NO_NULL_HEADERS = {"kafka-python"}
WRITES_THE_LARGEST = {"Java kafka-clients 4.3.1", "RocketMQ 5.5.0 json"}
READ_WITHIN_S = 60.0
STORED_WITHIN_S = 10.0


# -- What is written


@dataclass(frozen=True, slots=True)
class Lot:
    """Messages that are sent in one way with one compression."""

    way: str
    codec: str
    messages: Sequence[Message]


# Headers that no property can hold as they are: repeated, empty, null, not text, or steering a RocketMQ client.
STRANGE_HEADERS: tuple[tuple[str, bytes | None], ...] = (
    ("twice", b"1"),
    ("twice", b"2"),
    ("empty", b""),
    ("null", None),
    ("bytes", b"\xff\x01\x02"),
    ("RETRY_TOPIC", b"elsewhere"),
    ("KEYS", b"not the key"),
    ("a=b c%", b"odd name"),
)


def kafka_lots(name: str, ways: Sequence[str], codecs: Sequence[str]) -> Iterator[Lot]:
    """The first way gets every kind of message, the second every compression, the third a few."""
    strange = tuple(each for each in STRANGE_HEADERS if each[1] is not None or name not in SENDS_NO_NULL_HEADERS)
    hour_ago = int(time.time() * 1000) - 3_600_000
    every_kind = [
        Message(b"", 0, b"empty"),
        Message(None, 0, b"null", timestamp_ms=hour_ago),
        Message(b"1", 1, None, timestamp_ms=hour_ago + 1),
        Message(body(KIB), 2, b"a key", (("trace", b"t-1"), ("colour", "grün".encode())), "TagA", hour_ago + 2),
        Message(body(KIB), 1, b"\xff\x00\xfe", (), "TagB", hour_ago + 3),
        Message(body(KIB), 1, b"", strange, "TagC"),
        Message(body(MIB, like_text=True), 2, b"megabyte", (("size", b"1 MiB"),)),
    ]
    yield Lot(ways[0], codecs[0], every_kind)
    for codec in codecs if len(codecs) > 1 else ():
        way = ways[1] if len(ways) > 1 else ways[0]
        texts = [Message(body(KIB, like_text=True), 0, f"{codec} {n}".encode(), (("n", b"%d" % n),)) for n in range(4)]
        yield Lot(way, codec, [*texts, Message(body(32 * KIB, like_text=True), 0)])
    for way in ways[2:]:
        yield Lot(way, codecs[0], [Message(b"one way", 1, b"k%d" % n, (("n", b"%d" % n),), "TagC") for n in range(3)])
    if name in WRITES_THE_LARGEST:
        yield Lot(ways[0], codecs[0], [Message(body(BODY_BYTES_MAX), 2, b"largest")])


def rocketmq_lots(name: str, ways: Sequence[str], codecs: Sequence[str]) -> Iterator[Lot]:
    """Every kind of message, then the other ways to send, then every compression. Its client refuses an empty body."""
    every_kind = [
        Message(b"1", 0),
        Message(body(KIB), 1, b"key1 key2", (("trace", b"t-1"), ("colour", "grün".encode())), "TagA"),
        Message(body(MIB, like_text=True), 2, b"megabyte", (("size", b"1 MiB"),)),
    ]
    yield Lot(ways[0], codecs[0], every_kind)
    for way in ways[1:]:
        yield Lot(way, codecs[0], [Message(body(KIB), 1, f"{way} {n}".encode(), (("n", b"%d" % n),)) for n in range(3)])
    for codec in codecs[1:]:
        yield Lot(ways[0], codec, [Message(body(size, like_text=True), 0, codec.encode()) for size in (KIB, 64 * KIB)])
    if name in WRITES_THE_LARGEST:
        yield Lot(ways[0], codecs[0], [Message(body(BODY_BYTES_MAX), 2, b"largest")])


def body(size: int, *, like_text: bool = False) -> bytes:
    """Bytes that do not compress, or that do."""
    return (b"All work and no play. " * (size // 22 + 1))[:size] if like_text else random.Random(size).randbytes(size)


LOTS = {"kafka": kafka_lots, "rocketmq": rocketmq_lots}


# -- Writing it


@dataclass(slots=True)
class Written:
    """What one writer wrote, by position; and between which times, for those that cannot say when."""

    role: Role[Writer]
    names: dict[ClientProtocol, str]
    messages: dict[Position, Message] = field(default_factory=dict)
    between_ms: dict[Position, tuple[int, int]] = field(default_factory=dict)
    ways: set[str] = field(default_factory=set)
    codecs: set[str] = field(default_factory=set)

    @property
    def sizes(self) -> str:
        sizes = [len(each.body) for each in self.messages.values() if each.body is not None]
        return f"{_size(min(sizes))} to {_size(max(sizes))}"


def topic_names(role: Role[Writer]) -> dict[ClientProtocol, str]:
    """Return a name with a character that only the writer's protocol allows, and its form in the other protocol."""
    plain = "".join(each if each.isalnum() else "-" for each in role.name)
    if role.protocol == "kafka":
        return {"kafka": f"matrix.{plain}", "rocketmq": f"matrix|{plain}"}
    return {"kafka": f"matrix..{plain}", "rocketmq": f"matrix%{plain}"}


def write_all(role: Role[Writer], reach: Reach) -> Written:
    names = topic_names(role)
    create(reach.broker, role.protocol, names)
    writer = role.make(reach)
    assert writer.name == role.name
    written = Written(role, names)
    ends: Counter[int] = Counter()
    for lot in LOTS[role.protocol](role.name, writer.ways, writer.codecs):
        began_ms = int(time.time() * 1000)
        returned = writer.write(names[role.protocol], lot.messages, way=lot.way, codec=lot.codec)
        next_positions = []
        for message in lot.messages:
            next_positions.append((message.queue, ends[message.queue]))
            ends[message.queue] += 1
        _await_ends(reach, role.protocol, names, ends)
        ended_ms = int(time.time() * 1000)
        positions = [said or position for said, position in zip(returned, next_positions, strict=True)]
        complaint = f"{role.name}: {lot.way} {lot.codec}: returned {returned}, but next were {next_positions}"
        assert sorted(positions) == sorted(next_positions), complaint
        assert lot.way == "async" or positions == next_positions, complaint  # Only async promises no order.
        for message, position in zip(lot.messages, positions, strict=True):
            written.messages[position] = message
            written.between_ms[position] = began_ms, ended_ms
        written.ways.add(lot.way)
        written.codecs.add(lot.codec)
    return written


def create(broker: Broker | Peers, protocol: ClientProtocol, names: dict[ClientProtocol, str]) -> None:
    """Create the topics by Kafka's protocol, for the largest messages; in Apache RocketMQ, by RocketMQ's."""
    if isinstance(broker, Peers) and protocol == "rocketmq":
        remoting.create_topic(broker.rocketmq, names["rocketmq"], QUEUES)
        return
    topics.create_topic(broker.kafka, names["kafka"], QUEUES, TOPIC_CONFIG)


def _await_ends(reach: Reach, protocol: ClientProtocol, names: dict[ClientProtocol, str], ends: Counter[int]) -> None:
    """Wait until all is stored, also what nobody waited for."""

    def stored() -> dict[int, int]:
        if protocol == "kafka" or isinstance(reach.broker, Broker):
            return topics.end_offsets(reach.broker.kafka, names["kafka"])
        agent = reach.agents.rocketmq("5.5")
        offsets = agent.call("offsets", namesrv=reach.broker.namesrv, topic=names["rocketmq"])
        return {int(queue): offset for queue, offset in offsets.items()}

    expected = {queue: ends[queue] for queue in range(QUEUES)}
    eventually(f"{names['kafka']} ends at {expected}", stored, lambda actual: actual == expected, STORED_WITHIN_S)


# -- Reading it


class Matrix:
    """Who wrote, who read, and what was found; filled by the tests below."""

    def __init__(self, reach: Reach, client_protocols: Sequence[ClientProtocol]) -> None:
        self.reach = reach
        self.mixed = len(client_protocols) == 1  # One broker speaks both.
        self.written = {role.name: write_all(role, reach) for role in WRITERS}
        self.cells: dict[tuple[str, str], int] = {}
        self.timestamps: dict[tuple[str, Position], dict[str, int]] = defaultdict(dict)

    def read(self, role: Role[Reader]) -> list[str]:
        """Read everything with one reader; returns what differs, and fills the reader's cells that do not."""
        sources = [each for each in self.written.values() if self.mixed or each.role.protocol == role.protocol]
        counts = {each.names[role.protocol]: len(each.messages) for each in sources}
        seen: dict[str, list[Seen]] = defaultdict(list)
        for message in role.make(self.reach).read(counts, READ_WITHIN_S):
            seen[message.topic].append(message)
        problems = []
        for source in sources:
            found = list(self._compare(source, role, seen[source.names[role.protocol]]))
            problems += [f"{source.role.name} -> {role.name}: {problem}" for problem in found]
            if not found:
                self.cells[source.role.name, role.name] = len(source.messages)
        return problems

    def _compare(self, source: Written, role: Role[Reader], seen: list[Seen]) -> Iterator[str]:
        times = Counter(each.position for each in seen)
        for position in source.messages.keys() - times.keys():
            yield f"{position} is missing"
        for position, count in times.items():
            if count > 1:
                yield f"{position} came {count} times"
        for queue in range(QUEUES):
            offsets = [each.offset for each in seen if each.queue == queue]
            if offsets != sorted(offsets):
                yield f"queue {queue} came in the order {offsets}"
        for each in seen:
            if each.position not in source.messages:
                yield f"{each.position} was never written"
                continue
            for problem in differences(source.messages[each.position], each):
                yield f"{each.position}: {problem}"
            yield from self._compare_time(source, role, each)

    def _compare_time(self, source: Written, role: Role[Reader], seen: Seen) -> Iterator[str]:
        """The time that the writer gave, or one while it was writing, and then the same for every reader."""
        given = source.messages[seen.position].timestamp_ms
        earliest, latest = (given, given) if given is not None else source.between_ms[seen.position]
        if role_has_no_timestamp(source.role):
            earliest, latest = source.between_ms[seen.position]
        if not earliest <= seen.timestamp_ms <= latest:
            yield f"{seen.position}: timestamp {seen.timestamp_ms} is not within {earliest} to {latest}"
        others = self.timestamps[source.role.name, seen.position]
        others[role.name] = seen.timestamp_ms
        if len(set(others.values())) > 1:
            yield f"{seen.position}: readers disagree on the timestamp: {others}"


def role_has_no_timestamp(role: Role[Writer]) -> bool:
    """Spark's sink sends the time of sending, whatever the row says."""
    return role.name.startswith("Spark")


def differences(expected: Message, seen: Seen) -> Iterator[str]:
    if seen.fingerprint != fingerprint(expected.body):
        yield f"body {seen.fingerprint} ({seen.head!r}), not {fingerprint(expected.body)}"
    if seen.key != expected.key:
        yield f"key {seen.key!r}, not {expected.key!r}"
    if seen.tags != expected.tags:
        yield f"tags {seen.tags!r}, not {expected.tags!r}"
    if Counter(seen.headers) != Counter(expected.headers):
        yield f"headers {seen.headers}, not {expected.headers}"


# -- The tests


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, broker: Broker | Peers, agents: Agents, spark: Spark) -> Matrix:
    client_protocols: list[ClientProtocol] = ["kafka", "rocketmq"]
    return Matrix(
        Reach(broker, agents, spark), client_protocols if request.config.getoption("--peers") else client_protocols[:1]
    )


@pytest.mark.parametrize("role", READERS, ids=lambda role: role.name.replace(" ", "-"))
def test_reader_sees_what_every_writer_wrote(matrix: Matrix, role: Role[Reader]) -> None:
    problems = matrix.read(role)
    assert not problems, f"{len(problems)} differences, the first:\n" + "\n".join(problems[:20])


def test_no_cell_is_empty(matrix: Matrix) -> None:
    empty = [
        f"{writer.name} -> {reader.name}"
        for writer in WRITERS
        for reader in READERS
        if (matrix.mixed or writer.protocol == reader.protocol) and not matrix.cells.get((writer.name, reader.name))
    ]
    assert not empty, f"{len(empty)} empty cells:\n" + "\n".join(empty)


@pytest.mark.usefixtures("both_protocols")
def test_the_page_shows_the_matrix_of_this_run(matrix: Matrix, pytestconfig: pytest.Config) -> None:
    text = CLIENTS.read_text()
    assert BEGIN in text, f"{CLIENTS.name} has no {BEGIN}"
    assert END in text, f"{CLIENTS.name} has no {END}"
    before, rest = text.split(BEGIN, 1)
    shown, after = rest.split(END, 1)
    table = f"\n{render(matrix)}\n"
    if pytestconfig.getoption("--rewrite"):
        CLIENTS.write_text(before + BEGIN + table + END + after)
    else:
        assert shown == table, "the page shows another matrix; pytest tests/wire/test_matrix.py --rewrite renews it"


def render(matrix: Matrix) -> str:
    """Two tables: what each writer wrote, and how many of its messages each reader was found to see unchanged."""
    lines = ["| | writer | by | compression | bodies | messages |", "|---|---|---|---|---|---|"]
    letters = {role.name: chr(ord("A") + number) for number, role in enumerate(WRITERS)}
    for role in WRITERS:
        written = matrix.written[role.name]
        ways, codecs = ", ".join(sorted(written.ways)), ", ".join(sorted(written.codecs))
        cells = [letters[role.name], role.name, ways, codecs, written.sizes, str(len(written.messages))]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| reader | " + " | ".join(letters.values()) + " |", "|---|" + "---|" * len(letters)]
    for reader in READERS:
        cells = [str(matrix.cells.get((writer.name, reader.name), "")) for writer in WRITERS]
        lines.append(f"| {reader.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _size(count: int) -> str:
    for unit, size in (("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            return f"{count // size} {unit}"
    return f"{count} B"
