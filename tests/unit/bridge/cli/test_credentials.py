"""The login of commands: where it is taken from, and what is refused before a broker is asked."""

from base64 import b64encode
from pathlib import Path

import pytest
import typer

from duolog.bridge.cli.access.credentials import authorization

ALICE = f"Basic {b64encode(b'alice:se:cret').decode()}"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"DUOLOG_USER": "alice"}, None),
        ({"DUOLOG_PASSWORD": "se:cret"}, None),
        ({"DUOLOG_USER": "alice", "DUOLOG_PASSWORD": "se:cret"}, ALICE),
        ({"DUOLOG_USER": "alice", "DUOLOG_PASSWORD_FILE": "secret"}, ALICE),
        ({"DUOLOG_TOKEN": "a.b.c"}, "Bearer a.b.c"),
        ({"DUOLOG_TOKEN_FILE": "token"}, "Bearer a.b.c"),
    ],
)
def test_login_comes_from_the_environment_or_from_a_file(
    environment: dict[str, str], expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("se:cret\n")
    Path("token").write_text("a.b.c\r\n")
    assert authorization(environment) == expected


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"DUOLOG_USER": "alice", "DUOLOG_TOKEN": "t"}, "DUOLOG_TOKEN and DUOLOG_USER are two logins"),
        ({"DUOLOG_TOKEN": "t", "DUOLOG_TOKEN_FILE": "f"}, "DUOLOG_TOKEN and DUOLOG_TOKEN_FILE are both set"),
        ({"DUOLOG_PASSWORD": "p", "DUOLOG_PASSWORD_FILE": "f"}, "DUOLOG_PASSWORD and DUOLOG_PASSWORD_FILE are both"),
        ({"DUOLOG_PASSWORD_FILE": "missing"}, "DUOLOG_PASSWORD_FILE=missing cannot be read: No such file"),
        ({"DUOLOG_TOKEN_FILE": "."}, "cannot be read: Is a directory"),
        ({"DUOLOG_TOKEN_FILE": "latin"}, "DUOLOG_TOKEN_FILE=latin is not text in UTF-8"),
        ({"DUOLOG_TOKEN": "t\r\nHost: other"}, "one line of ASCII"),
        ({"DUOLOG_TOKEN": "\N{LATIN SMALL LETTER E WITH ACUTE}"}, "one line of ASCII"),
    ],
)
def test_login_that_cannot_be_meant_is_refused(
    environment: dict[str, str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin").write_bytes(b"\xe9")
    with pytest.raises(typer.BadParameter, match=reason):
        authorization(environment)
