"""Bearer tokens: which are accepted, until when, and how often an unknown key makes the broker read the key set."""

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from duolog.bridge.config import SecurityOptions
from duolog.bridge.security.oauth.key_sets import AGAIN_MS, REFRESH_MS, KeySet
from duolog.bridge.security.oauth.tokens import Tokens, TokenUser
from duolog.bridge.security.scram import LoginFailed
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.security.test_kafka_login import SecureBench

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
NOW = 1_700_000_000_000
OPTIONS = SecurityOptions(enabled=True, oauth_keys="keys", oauth_issuer="idp", oauth_audience="duolog")
CLAIMS = {"sub": "alice", "exp": NOW // 1000 + 60, "iss": "idp", "aud": ["duolog", "x"], "roles": ["devs"]}


class Source:
    """A key set that counts how often it is read."""

    def __init__(self, **keys: Any) -> None:
        self.keys = keys
        self.count = 0

    def read(self) -> bytes:
        self.count += 1
        if not self.keys:
            raise OSError("unreachable")
        keys = [{**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": name} for name, key in self.keys.items()]
        return json.dumps({"keys": keys}).encode()


def token(key: Any = KEY, kid: str = "one", algorithm: str = "ES256", **changes: Any) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers={"kid": kid})


def checked(given: str, options: SecurityOptions = OPTIONS) -> TokenUser | LoginFailed:
    return Tokens(KeySet(Source(one=KEY, two=OTHER).read), options).check(given, NOW, 0)


def test_token_names_a_user_with_groups_until_it_expires() -> None:
    options = SecurityOptions(oauth_keys="keys", oauth_groups_claim="roles")
    assert checked(token(), options) == TokenUser("alice", ("devs",), NOW + 60_000)
    assert checked(token()) == TokenUser("alice", (), NOW + 60_000)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (token(exp=NOW // 1000), "expired"),
        (token(exp=None), "exp"),
        (token(nbf=NOW // 1000 + 60), "not valid yet"),
        (token(iss="other"), "issuer"),
        (token(aud="other"), "udience"),
        (token(sub=None), "sub"),
        (token(sub=""), "not the name of a user"),
        (token(OTHER), "ignature"),
        (token(kid="three"), "unknown key"),
        (token("a shared secret of thirty-two bytes", algorithm="HS256"), "not valid"),
        (jwt.encode(CLAIMS, None, "none", headers={"kid": "one"}), "not valid"),
        (token() + "A", "not valid"),
        ("a.b.c", "not valid"),
        ("x" * 20_000, "characters"),
    ],
)
def test_other_tokens_are_refused(given: str, reason: str) -> None:
    found = checked(given)
    assert isinstance(found, LoginFailed)
    assert reason in str(found)


def test_unknown_keys_make_the_broker_read_at_most_once_in_a_while() -> None:
    source = Source(one=KEY)
    keys = KeySet(source.read)
    assert [keys.find(name, 0) is not None for name in ("one", "two", "two", None)] == [True, False, False, True]
    assert source.count == 1
    source.keys["two"] = OTHER
    assert keys.find("two", AGAIN_MS) is None
    assert keys.find("two", AGAIN_MS + 1) is not None
    source.keys = {}
    assert keys.find("two", 2 * REFRESH_MS) is not None, "the keys stay in use while the source cannot be read"
    assert source.count == 3


def test_kafka_client_logs_in_with_a_token_for_as_long_as_it_is_valid() -> None:
    bench = SecureBench(oauth_keys="keys")
    bench.security.tokens = Tokens(KeySet(Source(one=KEY).read), bench.security.options)
    bench.allow("topic", "orders", "all")
    now_s = bench.clock.now_ms() // 1000
    for given, error in ((token(exp=now_s + 60), ErrorCode.none), ("x", ErrorCode.sasl_authentication_failed)):
        client = bench.connect()
        assert client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER").error_code is ErrorCode.none
        sent = f"n,,\1auth=Bearer {given}\1\1".encode()
        answer = client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=sent)
        assert answer.error_code is error
        if error is ErrorCode.none:
            assert 59 <= answer.session_lifetime.total_seconds() <= 60
            bench.topic("orders")
            assert len(client.ask(ApiKey.METADATA, 12, topics=None).topics) == 1
            bench.clock.pass_ms(61_000)
            client.send(ApiKey.METADATA, 12, topics=[])
        assert client.is_closed
