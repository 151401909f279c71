"""`duolog user` and `duolog acl` as scripts use them: on a broker, and with --data on a directory that no broker uses.

Both ways must print the same, change the same, and end with the same status.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tests.kit.broker import Broker
from tests.kit.command import run_duolog

ROOT = "root secret"
SECRETS = {"mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"], "has_secret_key": True}
PLAIN = """\
accounts:
- accessKey: shop
  secretKey: shop secret
  admin: false
  topicPerms:
  - pay=SUB
- accessKey: alice
  secretKey: another secret
  admin: false
"""
OVERRIDDEN = (
    "changed: allow User:shop read on topic pay: the broker's rule `deny User:* all on topic pa*` overrides it\n"
)

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture(params=["broker", "--data"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Return what runs a command, by a user with a password in a file, or in the data directory."""
    data = tmp_path / "data"
    added = run_duolog("user", "add", "root", "--super", "--password-stdin", "--data", str(data), given=f"{ROOT}\n")
    assert (added.returncode, added.stdout) == (0, "added root\n"), added.stderr
    if request.param == "--data":
        yield lambda *words, given="": run_duolog(*words, "--data", str(data), given=given)
        return
    file = tmp_path / "password"
    file.write_text(f"{ROOT}\n")
    with Broker(data, {"security.enabled": "true"}) as broker:
        login = {"DUOLOG_HTTP": broker.http, "DUOLOG_USER": "root", "DUOLOG_PASSWORD_FILE": str(file)}
        yield lambda *words, given="": run_duolog(*words, given=given, **login)


def said(done: Done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_users_are_added_listed_changed_and_removed(run: Run) -> None:
    assert said(run("user", "add", "alice", "--in-group", "ops", "--password-stdin", given="one\n")) == "added alice\n"
    twice = run("user", "add", "alice", "--password-stdin", given="two\n")
    assert (twice.returncode, twice.stdout) == (1, "")
    assert "alice" in twice.stderr
    assert said(run("user", "list")) == "user   super  groups\n-----  -----  ------\nroot   yes\nalice         ops\n"
    assert json.loads(said(run("user", "list", "--json"))) == [
        {"name": "root", "is_super": True, "groups": [], **SECRETS},
        {"name": "alice", "is_super": False, "groups": ["ops"], **SECRETS},
    ]
    changed = run("user", "password", "alice", "--password-stdin", given="two\n")
    assert said(changed) == "changed the password of alice\n"
    assert run("user", "password", "alice", "--password-stdin", given="\n").returncode == 2, "no empty password"
    assert run("user", "password", "nobody", "--password-stdin", given="x\n").returncode == 1
    assert said(run("user", "remove", "alice")) == "removed alice\n"
    assert run("user", "remove", "alice").returncode == 1
    assert [row["name"] for row in json.loads(said(run("user", "list", "--json")))] == ["root"]


def test_rules_are_added_listed_and_removed(run: Run) -> None:
    rule = ("--deny", "--user", "alice", "--topic-prefix", "pay.", "--group", "crew", "--operation", "read,write")
    assert said(run("acl", "add", *rule)) == "rules added: 4\n"
    assert said(run("acl", "add", *rule)) == "rules added: 0\n"
    assert said(run("acl", "add", "--allow", "--user", "alice", "--cluster", "--operation", "alter-configs"))
    lines = said(run("acl", "list")).splitlines()
    assert lines[0].split() == ["permission", "principal", "operation", "resource", "pattern", "name", "host"]
    assert sorted(line.split() for line in lines[2:]) == [
        ["allow", "User:alice", "alter_configs", "cluster", "literal", "kafka-cluster", "*"],
        ["deny", "User:alice", "read", "group", "literal", "crew", "*"],
        ["deny", "User:alice", "read", "topic", "prefixed", "pay.", "*"],
        ["deny", "User:alice", "write", "group", "literal", "crew", "*"],
        ["deny", "User:alice", "write", "topic", "prefixed", "pay.", "*"],
    ]
    assert said(run("acl", "remove", *rule)) == "rules removed: 4\n"
    assert said(run("acl", "remove", *rule)) == "rules removed: 0\n"
    assert [row["resource"] for row in json.loads(said(run("acl", "list", "--json")))] == ["cluster"]
    for wrong in (("--user", "alice", "--topic", "x"), ("--allow", "--user", "alice"), ("--allow", "--topic", "x")):
        assert run("acl", "add", *wrong).returncode == 2, wrong
    assert run("acl", "add", "--allow", "--user", "alice", "--topic", "x", "--operation", "reed").returncode == 2


def test_import_says_which_entries_mean_something_else(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN)
    assert said(run("user", "add", "alice", "--password-stdin", given="one\n"))
    assert said(run("acl", "add", "--deny", "--user", "*", "--topic-prefix", "pa"))
    assert said(run("acl", "import", str(file), "--dry-run")) == OVERRIDDEN
    assert [row["name"] for row in json.loads(said(run("user", "list", "--json")))] == ["root", "alice"]
    assert said(run("acl", "import", str(file))) == f"{OVERRIDDEN}users added: 1, rules added: 1\n"
    assert [row["name"] for row in json.loads(said(run("user", "list", "--json")))] == ["root", "alice", "shop"]
    again = json.loads(said(run("acl", "import", str(file), "--json")))
    assert (again["users"], again["rules"], len(again["changed"])) == (0, 0, 1)
    file.write_text("accounts: x")
    refused = run("acl", "import", str(file))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "plain_acl.yml" in refused.stderr


def test_commands_log_in_with_a_token(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    keys = [{**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "one"}]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": keys}))
    claims = {"sub": "root", "exp": int(time.time()) + 600}
    token = jwt.encode(claims, key, "ES256", headers={"kid": "one"})
    (tmp_path / "token").write_text(f"{token}\n")
    data = tmp_path / "data"
    said(run_duolog("user", "add", "root", "--super", "--password-stdin", "--data", str(data), given=f"{ROOT}\n"))
    settings = {"security.enabled": "true", "security.oauth_keys": tmp_path / "keys.json"}
    with Broker(data, settings) as broker:
        at = {"DUOLOG_HTTP": broker.http}
        for login in ({"DUOLOG_TOKEN": token}, {"DUOLOG_TOKEN_FILE": str(tmp_path / "token")}):
            assert "root" in said(run_duolog("user", "list", **at, **login))
        forged = run_duolog("user", "list", **at, DUOLOG_TOKEN=token[:-8] + "AAAAAAAA")
        assert (forged.returncode, forged.stdout) == (1, "")
        lacking = run_duolog("user", "list", **at)
        assert (lacking.returncode, "DUOLOG_USER and DUOLOG_PASSWORD" in lacking.stderr) == (1, True)
