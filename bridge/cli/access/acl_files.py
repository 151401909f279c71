"""The files of RocketMQ's access lists, for `duolog acl import`: users, policies, and what cannot be taken over.

    plain_acl.yml (ACL 1.0)   accounts with an access key, a secret key, topicPerms, groupPerms, defaults and addresses
    JSON (ACL 2.0)            {"users": [...], "acls": [...]}, or the list of acls alone; fields as of mqadmin

Only what these files have is parsed of YAML: maps, lists of maps, and lists of scalars, in block style.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.auth import AclInfo, Policy, PolicyEntry
from duolog.protocol.rocketmq.json import fastjson

SUPER: Final = "super"
CREATE: Final = "Pub: a producer may not create a topic by its first message here; that needs Create (WRITE and CREATE)"
_ACTIONS: Final = {"PUB": "Pub", "SUB": "Sub"}
_MORE_SPECIFIC_IN_ALL: Final = 1 << 16  # A literal name is more specific than any prefix.


class BadAclFile(ValueError):
    """The file cannot be read; the message says where."""


class ImportedUser(NamedTuple):
    """A user of the file. Without a password it can only get rules."""

    name: str
    password: str
    is_super: bool


@dataclass
class AclFile:
    """What a file has."""

    users: list[ImportedUser] = field(default_factory=list)
    acls: list[AclInfo] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # What was not taken over, or means something else here.


def parse(text: str) -> AclFile:
    """Parse a file of either kind, and compare the meanings. Raises BadAclFile."""
    found = _of_json(text) if text.lstrip()[:1] in ("{", "[") else _of_plain(_Yaml(text).document())
    for acl in found.acls:
        found.remarks += overridden(acl)
    if any("pub" in map(str.lower, entry.actions) for acl in found.acls for entry in _entries_of(acl)):
        found.remarks.append(CREATE)
    return found


def _entries_of(acl: AclInfo) -> list[PolicyEntry]:
    return [entry for policy in acl.policies for entry in policy.entries]


def overridden(acl: AclInfo) -> Iterator[str]:
    """Yield a remark for each entry that Apache RocketMQ would let win, and that a deny overrides here."""
    entries = _entries_of(acl)
    denies = [entry for entry in entries if (entry.decision or "").lower() == "deny"]
    for allowed in entries:
        for denied in denies:
            shared = _shared_actions(allowed, denied)
            if allowed not in denies and shared and _wins(allowed.resource, denied.resource):
                yield (
                    f"{acl.subject}: Allow {', '.join(shared)} on {allowed.resource} has no effect, because "
                    f"Deny on {denied.resource} overrides it; RocketMQ lets the more specific entry win"
                )


def _shared_actions(one: PolicyEntry, other: PolicyEntry) -> list[str]:
    if "all" in {each.lower() for each in other.actions}:
        return one.actions
    denied = {each.lower() for each in other.actions}
    return [each for each in one.actions if each.lower() in denied or each.lower() == "all"]


def _wins(allowed: str, denied: str) -> bool:
    """Whether both name a common resource, and the first is at least as specific."""
    kinds = [text.partition(":")[0].lower() for text in (allowed, denied)]
    if "*" not in kinds and kinds[0] != kinds[1]:
        return False
    (one, one_rank), (other, other_rank) = _specificity(allowed), _specificity(denied)
    is_common = one.startswith(other) if other_rank < _MORE_SPECIFIC_IN_ALL else one == other
    return is_common and one_rank >= other_rank


def _specificity(resource: str) -> tuple[str, int]:
    name = resource.partition(":")[2] if ":" in resource else "*"
    return (name[:-1], len(name) - 1) if name.endswith("*") else (name, _MORE_SPECIFIC_IN_ALL)


# -- ACL 2.0


def _of_json(text: str) -> AclFile:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadAclFile(
            f"line {error.lineno}, column {error.colno}: {error.msg}; a file that begins with {{ or [ must be JSON, "
            "another one YAML as in plain_acl.yml"
        ) from error
    except RecursionError as error:
        raise BadAclFile("the JSON is nested too deeply") from error
    lists = {"acls": document} if isinstance(document, list) else document
    found = AclFile(acls=[_acl_of(each) for each in _rows(lists, "acls")])
    for acl in found.acls:
        found.remarks += _made_custom(acl)
    for user in _rows(lists, "users"):
        _take_user(found, user)
    return found


def _rows(lists: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = lists.get(name) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadAclFile(f"{name}: expected a list of objects")
    return rows


def _acl_of(row: dict[str, Any]) -> AclInfo:
    try:
        return fastjson.read(memoryview(json.dumps(row).encode()), AclInfo)
    except ProtocolError as error:
        raise BadAclFile(f"acls: {json.dumps(row)[:100]}: {error}") from error


def _take_user(found: AclFile, user: dict[str, Any]) -> None:
    name, password = str(user.get("username") or ""), str(user.get("password") or "")
    if not name:
        raise BadAclFile("users: a user has no username")
    found.users.append(ImportedUser(name, password, str(user.get("userType") or "").lower() == SUPER))
    if not password:
        found.remarks.append(f"User:{name} has no password in the file, and is not added")
    if str(user.get("userStatus") or "enable").lower() != "enable":
        found.remarks.append(f"User:{name} is disabled in the file, and is added as an ordinary user")


def _made_custom(acl: AclInfo) -> Iterator[str]:
    """Make all policies of a user custom ones, and say which were not."""
    for policy in acl.policies:
        if (policy.policy_type or "custom").lower() != "custom":
            yield (
                f"{acl.subject}: policies of type {policy.policy_type} count beside the custom ones here; RocketMQ "
                "asks them only if no custom one fits"
            )
        policy.policy_type = "Custom"


# -- plain_acl.yml


def _of_plain(document: Any) -> AclFile:
    if not isinstance(document, dict) or not isinstance(document.get("accounts"), list):
        raise BadAclFile("expected `accounts:` with a list, as plain_acl.yml has it")
    found = AclFile()
    for address in document.get("globalWhiteRemoteAddresses") or ():
        found.remarks.append(f"{address}: its requests need no signature in RocketMQ; here every request needs one")
    for account in document["accounts"]:
        _take_account(found, account)
    return found


def _take_account(found: AclFile, account: Any) -> None:
    if not isinstance(account, dict) or not account.get("accessKey") or not account.get("secretKey"):
        raise BadAclFile("an account has no accessKey or no secretKey")
    name, is_super = str(account["accessKey"]), account.get("admin") == "true"
    found.users.append(ImportedUser(name, str(account["secretKey"]), is_super))
    if address := account.get("whiteRemoteAddress"):
        found.remarks.append(f"User:{name}: requests from {address} need no signature in RocketMQ; here they do")
    entries: list[PolicyEntry] = []
    for kind, listed, default in (
        ("Topic", "topicPerms", "defaultTopicPerm"),
        ("Group", "groupPerms", "defaultGroupPerm"),
    ):
        permissions = [(f"{kind}:*", str(account.get(default) or "DENY"))]
        for text in account.get(listed) or ():
            resource, equals, permission = str(text).rpartition("=")
            if not equals:
                raise BadAclFile(f"{listed}: expected NAME=PERMISSION, got {text!r}")
            permissions.append((f"{kind}:{resource.strip()}", permission.strip()))
        for at, (resource, permission) in enumerate(permissions):
            entries += _entries(name, resource, permission, is_default=at == 0)
    if entries:
        found.acls.append(AclInfo(subject=f"User:{name}", policies=[Policy(policy_type="Custom", entries=entries)]))


def _entries(name: str, resource: str, permission: str, *, is_default: bool) -> Iterator[PolicyEntry]:
    words = {word.strip().upper() for word in permission.split("|")}
    if words <= {"DENY"}:
        if not is_default:  # Without a rule, nothing is allowed.
            yield PolicyEntry(resource=resource, actions=["All"], decision="Deny")
        return
    if words == {"ANY"}:
        words = {"PUB", "SUB"}
    if not words <= _ACTIONS.keys():
        raise BadAclFile(f"User:{name}: expected DENY, PUB, SUB or PUB|SUB for {resource}, got {permission!r}")
    yield PolicyEntry(resource=resource, actions=[_ACTIONS[word] for word in sorted(words)], decision="Allow")


# -- YAML, as far as the files use it


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


class _Yaml:
    """A reader of one document; `document` returns dicts, lists and strings. Raises BadAclFile."""

    def __init__(self, text: str) -> None:
        self._lines: list[_Line] = []
        for number, line in enumerate(text.splitlines(), 1):
            bare = re.sub(r"(^|\s)#.*$", "", line).rstrip()
            if bare and bare != "---":
                self._lines.append(_Line(number, len(bare) - len(bare.lstrip(" ")), bare.strip()))
        self._at = 0

    def document(self) -> Any:
        found = self._block(0) if self._lines else {}
        if self._at < len(self._lines):
            raise self._error("the indentation is not understood")
        return found

    def _block(self, indent: int) -> Any:
        return self._list(indent) if self._lines[self._at].text.startswith("-") else self._map(indent)

    def _list(self, indent: int) -> list[Any]:
        items: list[Any] = []
        while self._is_at(indent) and self._lines[self._at].text.startswith("-"):
            line = self._lines[self._at]
            text = line.text[1:].strip()
            if ": " in text or text.endswith(":"):
                # The keys of a map in a list stand below the first one.
                inner = line.indent + len(line.text) - len(text)
                self._lines[self._at] = _Line(line.number, inner, text)
                items.append(self._map(inner))
            else:
                items.append(self._scalar(text))
                self._at += 1
        return items

    def _map(self, indent: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._is_at(indent) and not self._lines[self._at].text.startswith("- "):
            key, colon, rest = self._lines[self._at].text.partition(":")
            if not colon:
                raise self._error("expected KEY: VALUE")
            self._at += 1
            if rest.strip():
                found[key.strip()] = self._scalar(rest.strip())
            elif self._at < len(self._lines) and self._is_inside(indent):
                found[key.strip()] = self._block(self._lines[self._at].indent)
            else:
                found[key.strip()] = ""
        return found

    def _is_at(self, indent: int) -> bool:
        return self._at < len(self._lines) and self._lines[self._at].indent == indent

    def _is_inside(self, indent: int) -> bool:
        line = self._lines[self._at]
        return line.indent > indent or (line.indent == indent and line.text.startswith("-"))

    def _scalar(self, text: str) -> str:
        if text[0] in "[{&*!|>%@`":
            raise self._error("only plain values are understood")
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text

    def _error(self, reason: str) -> BadAclFile:
        line = self._lines[min(self._at, len(self._lines) - 1)]
        return BadAclFile(f"line {line.number}: {reason}: {line.text[:80]!r}")
