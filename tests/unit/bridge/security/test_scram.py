"""SCRAM against the examples of the RFCs, and what is stored of passwords."""

import base64
from pathlib import Path

import pytest

from duolog.bridge.config import ConfigError, SecurityOptions
from duolog.bridge.security.logins import new_record
from duolog.bridge.security.passwords import fits, verifier_of
from duolog.bridge.security.scram import LoginFailed, Mechanism, ScramLogin
from duolog.bridge.security.secret_box import CannotDecrypt, SecretBox
from duolog.bridge.security.users import UserError
from duolog.protocol.errors import ProtocolError

# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
PROOF = b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def login(nonce: str = NONCE) -> ScramLogin:
    verifier = verifier_of("pencil", Mechanism.SHA_256, 4096, SALT)
    found = ScramLogin(Mechanism.SHA_256, lambda name: verifier, b"")
    found._server_nonce = nonce
    return found


def test_example_of_the_rfc() -> None:
    scram = login()
    answer = scram.first(FIRST)
    assert answer == f"r=rOprNGfwEbeRWgbNEkqO{NONCE},s={base64.b64encode(SALT).decode()},i=4096".encode()
    final = scram.final(f"c=biws,r=rOprNGfwEbeRWgbNEkqO{NONCE},".encode() + PROOF)
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert scram.user_name == "user"


def both(scram: ScramLogin, first: bytes, final: bytes) -> None:
    scram.first(first)
    scram.final(final)


@pytest.mark.parametrize(
    ("first", "final", "error"),
    [
        (FIRST, f"c=biws,r=rOprNGfwEbeRWgbNEkqO{NONCE},".encode() + PROOF.replace(b"dH", b"dX"), LoginFailed),
        (FIRST, b"c=biws,r=other," + PROOF, LoginFailed),
        (FIRST, f"c=eSws,r=rOprNGfwEbeRWgbNEkqO{NONCE},".encode() + PROOF, LoginFailed),
        (FIRST, f"c=biws,r=rOprNGfwEbeRWgbNEkqO{NONCE},p=AAAA".encode(), LoginFailed),
        (FIRST, f"c=biws,r=rOprNGfwEbeRWgbNEkqO{NONCE}".encode(), ProtocolError),
        (b"p=tls-unique,,n=user,r=abc", b"", ProtocolError),
        (b"n,a=other,n=user,r=abc", b"", LoginFailed),
        (b"n,,m=ext,n=user,r=abc", b"", ProtocolError),
        (b"n,,n=user,r=", b"", ProtocolError),
        (b"\xff", b"", ProtocolError),
        (b"n" * 5000, b"", ProtocolError),
    ],
)
def test_false_or_malformed_login_fails(first: bytes, final: bytes, error: type[Exception]) -> None:
    scram = login()
    with pytest.raises(error):
        both(scram, first, final)


def test_record_of_a_user_has_no_password_in_it() -> None:
    box = SecretBox(b"k" * 32)
    record = new_record("alice", "pass word", box, SecurityOptions(), 1)
    assert b"pass word" not in repr(record).encode()
    assert record.scram_sha_256 is not None
    assert fits("pass word", Mechanism.SHA_256, record.scram_sha_256)
    assert not fits("pass worD", Mechanism.SHA_256, record.scram_sha_256)
    assert box.decrypt(record.encrypted_secret, "alice") == "pass word"
    for other, name in ((SecretBox(b"l" * 32), "alice"), (box, "bob")):
        with pytest.raises(CannotDecrypt):
            other.decrypt(record.encrypted_secret, name)
    for password in ("", "\0", "x" * 2000):
        with pytest.raises(UserError):
            new_record("alice", password, box, SecurityOptions(), 1)


def test_key_file_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "data" / "security.key"
    encrypted = SecretBox.load(path).encrypt("secret", "alice")
    assert path.stat().st_mode & 0o777 == 0o600
    assert SecretBox.load(path).decrypt(encrypted, "alice") == "secret"
    assert [each.name for each in path.parent.iterdir()] == ["security.key"]
    path.write_text("short")
    with pytest.raises(ConfigError, match=r"security\.key: expected 64 hexadecimal digits"):
        SecretBox.load(path)
