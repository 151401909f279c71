"""Nobody learns which users exist: a login of an unknown user has the same answers, takes the same work, and waits as
long as one with a wrong password.

The users are made in both ways: `duolog user add` gives them the iterations of `security.scram_iterations` and salts of
16 bytes, and `kafka-configs.sh` gives them other ones, for one mechanism or both.
"""

import asyncio
import base64
from collections import Counter
from typing import Any

import pytest

from duolog.bridge.config import SecurityOptions
from duolog.bridge.records.security import ScramVerifier, UserSet
from duolog.bridge.security import passwords
from duolog.bridge.security.logins import Logins
from duolog.bridge.security.passwords import verifier_of
from duolog.bridge.security.scram import WRONG, Mechanism
from duolog.bridge.security.secret_box import KEY_BYTES, SecretBox
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.kit.http import HEADERS, HttpDialogue, encoded, parsed
from tests.unit.bridge.kafka.bench import Client
from tests.unit.bridge.security import test_http_paths
from tests.unit.bridge.security.test_before_login import new_broker, request
from tests.unit.bridge.security.test_failed_logins import passing
from tests.unit.bridge.security.test_http_paths import as_user
from tests.unit.bridge.security.test_kafka_login import NAMES, SecureBench, login

DELAY_MS = SecurityOptions().failed_login_delay_ms
UNKNOWN = [f"nobody{number}" for number in range(40)]
OF_TOOL = {"iterations": 8192, "salt": b"s" * 25}


def of_tool(name: str, *mechanisms: Mechanism, **shape: Any) -> UserSet:
    """Return a user as `kafka-configs.sh` makes it."""
    found: dict[Mechanism, ScramVerifier] = {
        mechanism: verifier_of("secret", mechanism, **{**OF_TOOL, **shape}) for mechanism in mechanisms
    }
    return UserSet(name, False, (), found.get(Mechanism.SHA_256), found.get(Mechanism.SHA_512), b"", 1)


def with_users(bench: SecureBench, *records: UserSet, without: tuple[str, ...] = ()) -> SecureBench:
    for record in records:
        bench.security.users.set(record, bench.clock.now_ms())
    bench.settle()
    for name in without:
        bench.security.users.remove(name, bench.clock.now_ms())
    bench.settle()
    return bench


def shape_of(client: Client, name: str, mechanism: str = "SCRAM-SHA-512") -> tuple[int, int]:
    """Return the iterations and the length of the salt that server-first shows for a name."""
    client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
    answer = client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=f"n,,n={name},r=nonce".encode())
    assert answer.error_code is ErrorCode.none
    fields = dict(part.split("=", 1) for part in answer.auth_bytes.decode().split(","))
    assert list(fields) == ["r", "s", "i"]
    return int(fields["i"]), len(base64.b64decode(fields["s"]))


# -- The same answers


@pytest.mark.parametrize("mechanism", NAMES)
def test_unknown_users_have_the_iterations_and_salts_of_users(mechanism: str) -> None:
    both = (Mechanism.SHA_256, Mechanism.SHA_512)
    bench = with_users(SecureBench(), of_tool("bob", *both), without=("alice", "root"))
    assert {shape_of(bench.connect(), name, mechanism) for name in ("bob", *UNKNOWN)} == {(8192, 25)}


def test_unknown_users_have_each_shape_as_often_as_users() -> None:
    records = [of_tool(f"user{number}", Mechanism.SHA_512) for number in range(6)]
    bench = with_users(SecureBench(), *records)  # Beside alice and root.
    names = [f"nobody{number}" for number in range(200)]
    found = Counter(shape_of(bench.connect(), name) for name in names)
    assert found.keys() == {(8192, 25), (4096, 16)}
    assert 130 < found[8192, 25] < 170, "six of eight users have it"
    first = {name: shape_of(bench.connect(), name) for name in UNKNOWN}
    with_users(bench, of_tool("another", Mechanism.SHA_512))
    changed = [name for name in UNKNOWN if shape_of(bench.connect(), name) != first[name]]
    assert len(changed) <= 3, "a further user changes the shape of few unknown names"
    with_users(bench, without=("another",))
    assert {name: shape_of(bench.connect(), name) for name in UNKNOWN} == first


def test_broker_without_users_shows_what_new_users_would_have() -> None:
    bench = with_users(SecureBench(scram_iterations=5000), without=("alice", "root"))
    assert shape_of(bench.connect(), "nobody") == (5000, 16)


def test_user_without_the_mechanism_is_like_an_unknown_one() -> None:
    bench = with_users(SecureBench(), of_tool("bob", Mechanism.SHA_512))
    assert shape_of(bench.connect(), "bob", "SCRAM-SHA-256") == (4096, 16)
    answers = [login(bench.connect(), name, "secret", "SCRAM-SHA-256")[-1] for name in ("bob", "nobody")]
    assert [(each.error_code, each.error_message) for each in answers] == [
        (ErrorCode.sasl_authentication_failed, WRONG)
    ] * 2


# -- The same work


class CountingBox(SecretBox):
    """Counts the computations with the key."""

    def __init__(self) -> None:
        super().__init__(b"k" * KEY_BYTES)
        self.count = 0

    def derive(self, purpose: bytes) -> bytes:
        self.count += 1
        return super().derive(purpose)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The hashes of passwords: their names, the lengths of the salts, and the iterations."""
    found: list[tuple[str, int, int]] = []
    compute = passwords.pbkdf2_hmac

    def counting(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        found.append((hash_name, len(salt), iterations))
        return compute(hash_name, password, salt, iterations)

    monkeypatch.setattr(passwords, "pbkdf2_hmac", counting)
    return found


def plain(bench: SecureBench, name: str) -> tuple[ErrorCode, str]:
    client = bench.connect()
    client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    answer = client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=f"\0{name}\0wrong".encode())
    return answer.error_code, answer.error_message


@pytest.mark.parametrize("mechanism", Mechanism)
def test_password_of_an_unknown_user_takes_the_same_hash(
    mechanism: Mechanism, hashed: list[tuple[str, int, int]]
) -> None:
    bench = with_users(SecureBench(sasl_plain_without_tls=True), of_tool("bob", mechanism), without=("alice", "root"))
    hashed.clear()
    answers = [plain(bench, name) for name in ("bob", *UNKNOWN[:3])]
    assert answers == [(ErrorCode.sasl_authentication_failed, WRONG)] * 4
    assert hashed == [(mechanism.hash_name, 25, 8192)] * 4


def test_basic_authentication_of_an_unknown_user_takes_the_same_hash(hashed: list[tuple[str, int, int]]) -> None:
    bench = test_http_paths.Bench()
    answers = [bench.ask("GET", "/api/users", headers=as_user(name, "wrong")) for name in ("root", *UNKNOWN[:3])]
    assert answers == [(401, {"error": WRONG})] * 4
    assert hashed == [("sha512", 16, 4096)] * 4


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_unknown_user_takes_the_same_computations_with_the_key(mechanism: str) -> None:
    bench, box = SecureBench(sasl_plain_without_tls=True), CountingBox()
    bench.security.use(box)
    counts = set()
    for name in ("alice", *UNKNOWN[:3]):
        box.count = 0
        if mechanism == "PLAIN":
            plain(bench, name)
        else:
            login(bench.connect(), name, "wrong", mechanism)
        counts.add(box.count)
    assert len(counts) == 1
    assert counts != {0}


def test_basic_authentication_looks_for_a_remembered_password_of_unknown_users_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, passwords_hashed = test_http_paths.Bench(), list[str]()
    assert bench.ask("GET", "/api/users", headers=as_user("root"))[0] == 200
    compute = Logins._memory_of

    def counting(self: Logins, password: str) -> bytes:
        passwords_hashed.append(password)
        return compute(self, password)

    monkeypatch.setattr(Logins, "_memory_of", counting)
    for name in ("root", "alice", "nobody"):
        assert bench.ask("GET", "/api/users", headers=as_user(name, f"wrong {name}"))[0] == 401
    assert passwords_hashed == ["wrong root", "wrong alice", "wrong nobody"]


# -- The same delay


@pytest.mark.parametrize("name", ["root", "nobody"])
def test_rocketmq_answer_waits_for_unknown_users_too(name: str) -> None:
    broker = new_broker(failed_login_delay_ms=DELAY_MS)
    client = broker.connect()
    client.connection.data_received(request(RequestCode.GET_BROKER_CLUSTER_INFO, name=name, secret_key=b"wrong"))
    passing(broker, DELAY_MS - 1)
    assert client.answer_to(1) is None
    passing(broker, 1)
    answer = client.answer_to(1)
    assert answer is not None
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION, "the access key is unknown, or the signature does not fit the request"
    )  # fmt: skip


@pytest.mark.parametrize("name", ["root", "nobody"])
def test_http_answer_waits_for_unknown_users_too(name: str) -> None:
    bench = test_http_paths.Bench(DELAY_MS)

    async def dialogue() -> tuple[bytes, bytes]:
        port = bench.port()
        await port.start()
        connection = HttpDialogue(bench.core, port)
        connection.send(encoded("GET", "/api/users", b"", HEADERS | as_user(name, "wrong")))
        await connection.turn(50)
        passing(bench.core, DELAY_MS - 1)
        await connection.turn(50)
        early = bytes(connection.transport.taken)
        passing(bench.core, 1)
        answer = await connection.answers()
        await port.stop()
        return early, answer

    early, answer = asyncio.run(dialogue())
    status, _, body = parsed(answer)
    assert (early, status, body) == (b"", 401, f'{{"error":"{WRONG}"}}'.encode())
