"""Secrets are compared in a time that does not depend on their content: by `hmac.compare_digest`, in each login.

The secrets of the users here are bytes that can be compared in no other way; a walk over the code finds comparisons of
such values that no test reaches.
"""

import ast
import hmac
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from duolog.bridge.rocketmq.access.signed_requests import SignedRequests
from duolog.bridge.security.scram import LoginFailed, Mechanism, ScramClient
from duolog.bridge.security.users import User
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.rocketmq.acl_signature import Buffer, SecretKey
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.kit.core import ManualCore
from tests.unit.bridge.security import test_http_paths
from tests.unit.bridge.security.test_before_login import new_broker, request
from tests.unit.bridge.security.test_http_paths import as_user
from tests.unit.bridge.security.test_kafka_login import NAMES, SecureBench, login

ROOT = Path(__file__).parents[4]
CODE = ("bridge/security", "bridge/http/access", "bridge/rocketmq/access", "bridge/kafka",
        "bridge/cluster", "protocol/rocketmq/acl_signature.py")  # fmt: skip
SECRET = re.compile(r"password|secret|signature|proof|digest|salted|stored_key|server_key|client_key|^token$")


class Secret(bytes):
    """Bytes that `==` must not compare."""

    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a secret is compared in a time that depends on its content")

    def __ne__(self, other: object) -> bool:
        return self == other


class WatchedKey(SecretKey):
    """A secret key whose signatures are secrets."""

    def sign(self, content: bytes, body: Buffer) -> bytes:
        return Secret(super().sign(content, body))


def test_secrets_of_this_test_can_be_compared_in_one_way_only() -> None:
    assert hmac.compare_digest(b"a", Secret(b"a"))
    for compare in (lambda: Secret(b"a") == b"a", lambda: Secret(b"a") != b"b", lambda: b"a" in [Secret(b"b")]):
        with pytest.raises(AssertionError, match="depends on its content"):
            compare()


def watch(core: ManualCore) -> None:
    """Make secrets of the verifiers of all users, and of the passwords that were checked before."""
    users, logins = core.security.users, core.security.logins
    for name, user in users._users.items():
        sha_256, sha_512 = (
            verifier
            and verifier._replace(stored_key=Secret(verifier.stored_key), server_key=Secret(verifier.server_key))
            for verifier in (user.record.scram_sha_256, user.record.scram_sha_512)
        )
        record = msgspec.structs.replace(user.record, scram_sha_256=sha_256, scram_sha_512=sha_512)
        users._users[name] = User(record, user.login)
    for key, memory in logins._remembered.items():
        logins._remembered[key] = Secret(memory)


@pytest.mark.parametrize("mechanism", NAMES)
def test_scram_proofs(mechanism: str) -> None:
    bench = SecureBench()
    watch(bench)
    assert login(bench.connect(), "alice", "secret", mechanism)[-1].error_code is ErrorCode.none
    for name in ("alice", "nobody"):
        refused = login(bench.connect(), name, "wrong", mechanism)[-1]
        assert refused.error_code is ErrorCode.sasl_authentication_failed


def test_proof_of_the_server() -> None:
    client = ScramClient(Mechanism.SHA_256, "broker", b"salted", "nonce")
    client._server_final = Secret(b"v=right")
    client.check(b"v=right")
    with pytest.raises(LoginFailed):
        client.check(b"v=wrong")


def test_passwords() -> None:
    bench = SecureBench(sasl_plain_without_tls=True)
    watch(bench)
    for password, error in (("secret", ErrorCode.none), ("wrong", ErrorCode.sasl_authentication_failed)):
        client = bench.connect()
        client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        answer = client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=f"\0alice\0{password}".encode())
        assert answer.error_code is error


def test_passwords_that_were_checked_before() -> None:
    bench = test_http_paths.Bench()
    assert bench.ask("GET", "/api/users", headers=as_user("root"))[0] == 200
    watch(bench.core)
    assert isinstance(next(iter(bench.core.security.logins._remembered.values())), Secret)
    assert bench.ask("GET", "/api/users", headers=as_user("root"))[0] == 200
    assert bench.ask("GET", "/api/users", headers=as_user("root", "wrong"))[0] == 401


def test_signatures() -> None:
    broker = new_broker()
    gate, user = broker.rocketmq_connections.gate, broker.security.users.get("root")
    assert gate is not None
    assert user is not None
    assert isinstance(gate.authenticator, SignedRequests)
    gate.authenticator._secret_keys["root"] = (user.login, WatchedKey(b"secret"))
    gate.authenticator._no_secret_key = WatchedKey(b"of nobody")
    outcomes = (("root", b"secret", ResponseCode.SUCCESS), ("root", b"wrong", ResponseCode.NO_PERMISSION),
                ("nobody", b"secret", ResponseCode.NO_PERMISSION))  # fmt: skip
    for name, secret_key, code in outcomes:
        client = broker.connect()
        client.connection.data_received(request(RequestCode.GET_BROKER_CLUSTER_INFO, b"", name, secret_key))
        broker.loop.turn()
        answer = client.answer_to(1)
        assert answer is not None
        assert answer.code == code


def comparisons() -> Iterator[tuple[str, ast.Compare]]:
    """Yield the comparisons by == and != in the code that sees secrets, each with its place."""
    for name in CODE:
        place = ROOT / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def values_in(node: ast.AST) -> Iterator[str]:
    """Yield the names of the values of an expression, without those of which only the length counts."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if not name.isupper():  # A constant of the code is no secret.
            yield name
    for child in ast.iter_child_nodes(node):
        yield from values_in(child)


@pytest.mark.slow
def test_no_code_compares_a_secret_in_another_way() -> None:
    found = [(place, name) for place, node in comparisons() for name in values_in(node) if SECRET.search(name)]
    assert found == []


@pytest.mark.slow
def test_walk_over_the_code_finds_comparisons() -> None:
    assert len({place.rpartition(":")[0] for place, _ in comparisons()}) > 20
    wrong, right = (ast.parse(text, mode="eval").body for text in ("user.stored_key == found", "len(proof) == size"))
    assert [name for name in values_in(wrong) if SECRET.search(name)] == ["stored_key"]
    assert not [name for name in values_in(right) if SECRET.search(name)]
