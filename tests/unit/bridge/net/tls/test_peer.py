"""The users that `tls.principal_rule` gives for the subjects of client certificates, and the files that are refused."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from duolog.bridge.config import ConfigError, TlsOptions, load
from duolog.bridge.net.tls.outgoing import outgoing_context
from duolog.bridge.net.tls.peer import NAME_CHARACTERS_MAX, SUBJECT_CHARACTERS_MAX, BadPrincipalRule, PrincipalRules
from duolog.bridge.net.tls.server_tls import ServerTls
from tests.kit.certificates import Authority
from tests.unit.bridge.net.tls.bench import TlsBench

KAFKA = "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),O=.*$/$1@$2/L,DEFAULT"


@pytest.mark.parametrize(
    ("rule", "subject", "common_names", "user"),
    [
        ("CN", "CN=alice,O=Shop", ["alice"], "alice"),
        ("CN", "CN=alice,CN=admin", ["alice", "admin"], None),
        ("CN", "O=Shop", [], None),
        ("CN", "CN=", [""], None),
        ("CN,DN", "O=Shop", [], "O=Shop"),
        ("DN", "CN=alice,O=Shop", ["alice"], "CN=alice,O=Shop"),
        ("DEFAULT", "CN=alice,O=Shop", ["alice"], "CN=alice,O=Shop"),
        # The examples of Kafka's documentation.
        (KAFKA, "CN=serviceuser,OU=ServiceUsers,O=Unknown", ["serviceuser"], "serviceuser"),
        (KAFKA, "CN=AdminUser,OU=Admin,O=Unknown", ["AdminUser"], "adminuser@admin"),
        (KAFKA, "CN=other", ["other"], "CN=other"),
        (r"RULE:CN=a\/(.*)/$1\/x/U", "CN=a/b", ["a/b"], "B/X"),
        ("RULE:CN=(.*)/u-$1/", "CN=x,O=y", ["x"], "u-x,O=y"),
        ("RULE:CN=none/x/", "CN=alice", ["alice"], None),
        # A name that would change lines of the log, or is longer than a name of a user may be.
        ("CN", "CN=a", ["a\nb"], None),
        ("CN", "CN=a", ["a" * (NAME_CHARACTERS_MAX + 1)], None),
        ("CN", "CN=" + "a" * SUBJECT_CHARACTERS_MAX, ["a"], None),
    ],
)
def test_user_of_a_subject(rule: str, subject: str, common_names: list[str], user: str | None) -> None:
    assert PrincipalRules(rule).principal_of(subject, common_names) == user


@pytest.mark.parametrize("rule", ["", "XX", "CN DN", "RULE:(/x/", "RULE:a/$1/", "RULE:a/b", "RULE:a/b/X", "CN,,DN"])
def test_rule_that_cannot_be_read_is_refused(rule: str) -> None:
    with pytest.raises(BadPrincipalRule):
        PrincipalRules(rule)


def test_user_of_a_certificate_is_on_the_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    bench = TlsBench(authority, client_auth="request")
    for files, user, subject in (
        (authority.client("alice", organisation="Shop"), "alice", "CN=alice,O=Shop"),
        (None, None, ""),
    ):
        bench.connect(authority.client_context(files)).shake()
        peer = bench.connected[-1].peer
        assert peer is not None
        assert (peer.principal, peer.subject) == (user, subject)
    ambiguous = bench.connect(authority.client_context(authority.client("alice", "admin")))
    ambiguous.shake()  # The client has finished when the broker looks at its certificate.
    assert ambiguous.transport.closing
    assert len(bench.connected) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"certificate_file": "no-such-file"}, r"tls.certificate_file: no-such-file: No such file"),
        ({"certificate_file": "{ca}.txt"}, "tls.certificate_file: .* cannot be used: a file is not in PEM format"),
        ({"key_file": "{ca}"}, "tls.certificate_file: .* cannot be used"),
        ({"key_file": "{client}"}, "cannot be used: key values mismatch"),
        ({"client_auth": "require", "ca_file": "{client}"}, "tls.ca_file: .* has no certificate in PEM"),
        ({"ciphers": "NONE-SUCH"}, "tls.ciphers: OpenSSL knows no cipher"),
        ({"principal_rule": "RULE:("}, "tls.principal_rule: expected"),
    ],
)
def test_file_that_cannot_be_used_is_named(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    authority = Authority(tmp_path)
    files, places = authority.server(), {"ca": str(authority.file), "client": str(authority.client("bob").key)}
    Path(f"{authority.file}.txt").write_text("not PEM")
    values: dict[str, Any] = {"certificate_file": str(files.certificate), "key_file": str(files.key)}
    with pytest.raises(ConfigError, match=reason):
        ServerTls(TlsOptions(**values | {name: text.format(**places) for name, text in change.items()}))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tls.mode": "required"}, "tls.certificate_file: tls.mode=required needs a certificate"),
        (
            {"tls.mode": "optional", "tls.certificate_file": "x", "tls.client_auth": "request"},
            "tls.ca_file: tls.client_auth=request needs",
        ),
        ({"tls.mode": "on"}, "tls.mode: expected one of off, optional, required"),
        ({"security.oauth_keys": "http://idp.example/keys"}, "security.oauth_keys: .* has no TLS"),
        ({"security.oauth_keys": "http://127.0.0.1.example/keys"}, "security.oauth_keys: .* has no TLS"),
        ({"security.oauth_keys": "http://localhost@idp.example/keys"}, "security.oauth_keys: .* has no TLS"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(values: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(None, values)


@pytest.mark.parametrize(
    "values",
    [
        {"security.oauth_keys": "https://idp.example/keys"},
        {"security.oauth_keys": "http://localhost:8080/keys"},
        {"security.oauth_keys": "http://[::1]/keys"},
        {"security.oauth_keys": "/etc/duolog/keys.json"},
        {"security.oauth_keys": "http://idp.example/keys", "security.oauth_keys_without_tls": "true"},
    ],
)
def test_keys_of_tokens_come_with_tls_or_from_this_machine(values: dict[str, str]) -> None:
    assert load(None, values).security.oauth_keys == values["security.oauth_keys"]


def test_outgoing_connections_verify_unless_the_operator_says_otherwise(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    strict = outgoing_context(TlsOptions(outgoing_ca_file=str(authority.file)))
    lenient = outgoing_context(TlsOptions(outgoing_ca_file=str(authority.file), outgoing_hostname_check=False))
    contexts = strict, lenient, outgoing_context(TlsOptions())
    assert [each.check_hostname for each in contexts] == [True, False, True]
    assert {each.verify_mode for each in contexts} == {ssl.CERT_REQUIRED}
    assert len(strict.get_ca_certs()) == 1
