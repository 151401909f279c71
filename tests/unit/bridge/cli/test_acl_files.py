"""RocketMQ's access lists become users and policies, and entries with another meaning are named."""

import json

import pytest

from duolog.bridge.cli.access.acl_files import CREATE, BadAclFile, ImportedUser, parse
from duolog.bridge.rocketmq.access.policies import rules_of

PLAIN = """\
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
- accessKey: shop   # the shop
  secretKey: "12345678"
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  groupPerms:
    - groupA=DENY
- accessKey: root
  secretKey: secret:with:colons
  whiteRemoteAddress: 192.168.1.*
  admin: true
"""


def test_plain_acl_becomes_users_and_rules() -> None:
    found = parse(PLAIN)
    assert found.users == [ImportedUser("shop", "12345678", False), ImportedUser("root", "secret:with:colons", True)]
    (acl,) = found.acls
    rules = [rule for each in rules_of(acl, acl.subject or "", "c").values() for rule in each]
    assert list(map(str, rules)) == [
        "deny User:shop all on topic topicA",
        "allow User:shop write on topic topicB",
        "allow User:shop read on topic topicB",
        "allow User:shop read on group *",
        "deny User:shop all on group groupA",
    ]
    white, of_root, create = found.remarks
    assert (white.partition(":")[0], of_root.partition(": ")[0], create) == ("10.10.103.*", "User:root", CREATE)


def policy(resource: str, decision: str, *actions: str) -> dict[str, object]:
    return {"resource": resource, "decision": decision, "actions": actions or ["Pub", "Sub"]}


@pytest.mark.parametrize(
    ("allowed", "denied", "is_overridden"),
    [
        ("Topic:orders", "Topic:*", True),
        ("Topic:orders", "Topic:ord*", True),
        ("Topic:orders*", "Topic:ord*", True),
        ("Topic:orders", "Topic:orders", True),
        ("Topic:orders", "*", True),
        ("Topic:*", "Topic:orders", False),
        ("Topic:ord*", "Topic:orders*", False),
        ("Topic:payments", "Topic:ord*", False),
        ("Group:orders", "Topic:*", False),
    ],
)
def test_entry_that_a_deny_overrides_is_named(allowed: str, denied: str, is_overridden: bool) -> None:
    entries = [policy(allowed, "Allow", "Sub"), policy(denied, "Deny", "All")]
    acls = [{"subject": "User:a", "policies": [{"policyType": "CUSTOM", "entries": entries}]}]
    remarks = parse(json.dumps(acls)).remarks
    assert bool(remarks) is is_overridden
    assert not remarks or f"Allow Sub on {allowed} has no effect" in remarks[0]


def test_users_of_acl_2() -> None:
    users = [
        {"username": "a", "password": "p", "userType": "Super", "userStatus": "disable"},
        {"username": "b", "userType": "Normal"},
    ]
    found = parse(json.dumps({"users": users}))
    assert found.users == [ImportedUser("a", "p", True), ImportedUser("b", "", False)]
    assert len(found.remarks) == 2


@pytest.mark.parametrize(
    "text",
    ["{", "[3]", "accounts: x", "accounts:\n- accessKey: a\n", "a: [1]", "accounts:\n  - accessKey: a\n   b: c\n", "x"],
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(BadAclFile):
        parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{\naccounts: x", "line 2, column 1: Expecting property name"),
        ("[" * 100_000, "nested too deeply"),
        ('{"users": [{"password": "p"}]}', "users: a user has no username"),
        ('{"users": "alice"}', "users: expected a list of objects"),
        ('[{"subject": "User:a", "policies": 3}]', 'acls: {"subject": "User:a", "policies": 3}: '),
        ("\x7fELF", "line 1: expected KEY: VALUE"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_in_words(text: str, said: str) -> None:
    with pytest.raises(BadAclFile) as raised:
        parse(text)
    assert said in str(raised.value)
    assert "Error(" not in str(raised.value)
