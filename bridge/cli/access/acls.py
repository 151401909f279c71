"""`duolog acl`: the access rules of a broker. With --data they are changed in a data directory that no broker uses."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duolog.bridge.cli.access.users import OfflineData, add_offline, offline
from duolog.bridge.cli.common import (
    AsJson,
    BadOption,
    ConfigFile,
    Http,
    new_app,
    reading,
    show_done,
    show_json,
    show_table,
    writing,
)

if TYPE_CHECKING:
    from duolog.bridge.cli.access.acl_files import ImportedUser
    from duolog.bridge.security.rules import Rule

acl_app = new_app("Access rules: what users may do. A rule that denies counts more than any that allows.")

Allow = Annotated[bool, typer.Option("--allow", help="the rule allows")]
Deny = Annotated[bool, typer.Option("--deny", help="the rule denies")]
UserNames = Annotated[list[str] | None, typer.Option("--user", metavar="NAME", help="a user, or * for all; repeatable")]
UserGroups = Annotated[
    list[str] | None, typer.Option("--user-group", metavar="GROUP", help="a group of users; repeatable")
]
TopicNames = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="a topic, or * for all")]
TopicPrefixes = Annotated[list[str] | None, typer.Option("--topic-prefix", metavar="P", help="topics that begin so")]
GroupNames = Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="a consumer group, or * for all")]
GroupPrefixes = Annotated[list[str] | None, typer.Option("--group-prefix", metavar="P", help="groups that begin so")]
TransactionalIds = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="ID", help="a transactional id, or * for all")
]
TransactionalPrefixes = Annotated[
    list[str] | None, typer.Option("--transactional-id-prefix", metavar="P", help="transactional ids that begin so")
]
Cluster = Annotated[bool, typer.Option("--cluster", help="the broker as a whole")]
Operations = Annotated[
    str, typer.Option("--operation", metavar="NAMES", help="read, write, create, describe, ..., or all; with commas")
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="only from this address or network; * for any")]


@acl_app.command("remove", help="Remove the rules that `add` with the same options has added.")
@acl_app.command(
    "add",
    help="Add a rule for each user, resource and operation that is named.",
    epilog="Example: duolog acl add --allow --user alice --topic orders --operation read,write",
)
def acl_change(
    command: typer.Context,
    allow: Allow = False,
    deny: Deny = False,
    users: UserNames = None,
    user_groups: UserGroups = None,
    topics: TopicNames = None,
    topic_prefixes: TopicPrefixes = None,
    groups: GroupNames = None,
    group_prefixes: GroupPrefixes = None,
    transactional_ids: TransactionalIds = None,
    transactional_prefixes: TransactionalPrefixes = None,
    cluster: Cluster = False,
    operation: Operations = "all",
    host: Host = "*",
    data: OfflineData = None,
    config: ConfigFile = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Add or remove the rules that the options name; both commands have the same options."""
    resources = _resources(
        topics, topic_prefixes, groups, group_prefixes, transactional_ids, transactional_prefixes, cluster
    )
    what = command.info_name or ""
    done = {"add": "added", "remove": "removed"}[what]
    count = _change(what, _rules(allow, deny, users, user_groups, resources, operation, host), data, config, http)
    show_done({done: count}, f"rules {done}: {count}", as_json=as_json)


@acl_app.command("list")
def acl_list(data: OfflineData = None, config: ConfigFile = None, http: Http = None, as_json: AsJson = False) -> None:
    """List the rules."""
    if data is None:
        rows = reading(http).get("/api/acls")
    else:
        import msgspec

        from duolog.bridge.security.tools.rule_texts import text_of

        with offline(data, config) as core:
            rows = [msgspec.to_builtins(text_of(rule)) for rule in core.security.acls.all()]
    if as_json:
        show_json(rows)
        return
    columns = ("permission", "principal", "operation", "resource", "pattern", "name", "host")
    show_table(columns, [[row[column] for column in columns] for row in rows])


@acl_app.command("import", epilog="Example: duolog acl import conf/plain_acl.yml")
def acl_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="plain_acl.yml, or JSON of ACL 2.0")],
    is_trial: Annotated[
        bool, typer.Option("--dry-run", help="change nothing, only say what would mean something else")
    ] = False,
    data: OfflineData = None,
    config: ConfigFile = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Import users and rules of RocketMQ, and print each entry that means something else here.

    A rule that the broker has may deny what the file allows, or the other way round: these are printed, too. Users that
    exist already keep their passwords.
    """
    from duolog.bridge.cli.access.acl_files import BadAclFile, parse
    from duolog.bridge.cli.access.rule_conflicts import conflicts
    from duolog.bridge.config import load
    from duolog.bridge.rocketmq.access.policies import rules_of
    from duolog.bridge.security.rules import BadRule

    cluster = load(config, {}, os.environ).rocketmq.cluster
    try:
        found = parse(file.read_text(encoding="utf-8"))
        wanted = [rules_of(acl, acl.subject or "", cluster) for acl in found.acls]
    except OSError as error:
        raise BadOption(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadOption(f"{file}: the file is not text in UTF-8, from byte {error.start} on") from error
    except (BadAclFile, BadRule) as error:
        raise BadOption(f"{file}: {error}") from error
    rules = [rule for of_resources in wanted for of_resource in of_resources.values() for rule in of_resource]
    changed = [*found.remarks, *conflicts(rules, *_known(data, config, http))]
    done: dict[str, Any] = {"changed": changed}
    remarks = [f"changed: {remark}" for remark in changed]
    if is_trial:
        if remarks or as_json:
            show_done(done, "\n".join(remarks), as_json=as_json)
        return
    users = [user for user in found.users if user.password]
    added = _add_users(users, data, config, http)
    count = _apply("add", rules, data, config, http)
    text = "\n".join([*remarks, f"users added: {added}, rules added: {count}"])
    show_done(done | {"users": added, "rules": count}, text, as_json=as_json)


def _known(data: str | None, config: Any, http: str | None) -> "tuple[list[Rule], dict[str, Sequence[str]]]":
    """Return the rules that there are, and the groups of each user. A data directory that does not exist has none."""
    import msgspec

    from duolog.bridge.security.tools.rule_texts import RuleText, rule_of

    if data is None:
        api = reading(http)
        rules = [rule_of(msgspec.convert(row, RuleText)) for row in api.get("/api/acls")]
        return rules, {row["name"]: row["groups"] for row in api.get("/api/users")}
    if not Path(data).exists():
        return [], {}
    with offline(data, config) as core:
        users = core.security.users.all()
        return [*core.security.acls.all()], {user.name: user.record.groups for user in users}


def _add_users(users: "Sequence[ImportedUser]", data: str | None, config: Any, http: str | None) -> int:
    """Add the users that do not exist; return how many these are."""
    if data is None:
        api = writing(http)
        known = {row["name"] for row in api.get("/api/users")}
        new = [user for user in users if user.name not in known]
        for user in new:
            body = {"name": user.name, "password": user.password, "is_super": user.is_super}
            api.post("/api/users", body)
        return len(new)
    with offline(data, config) as core:
        new = [user for user in users if core.security.users.get(user.name) is None]
        for name, password, is_super in new:
            add_offline(core, name, password, is_super=is_super)
        return len(new)


def _resources(
    topics: list[str] | None,
    topic_prefixes: list[str] | None,
    groups: list[str] | None,
    group_prefixes: list[str] | None,
    transactional_ids: list[str] | None,
    transactional_prefixes: list[str] | None,
    cluster: bool,
) -> list[dict[str, str]]:
    """Return the resources that the options name, as fields of rules."""
    named = (
        ("topic", "literal", topics),
        ("topic", "prefixed", topic_prefixes),
        ("group", "literal", groups),
        ("group", "prefixed", group_prefixes),
        ("transactional_id", "literal", transactional_ids),
        ("transactional_id", "prefixed", transactional_prefixes),
    )
    found = [
        {"resource": resource, "pattern": pattern, "name": name}
        for resource, pattern, names in named
        for name in names or ()
    ]
    if cluster:
        found.append({"resource": "cluster"})
    if not found:
        raise BadOption("expected --topic, --topic-prefix, --group, --group-prefix, --transactional-id or --cluster")
    return found


def _rules(
    allow: bool,
    deny: bool,
    users: Sequence[str] | None,
    user_groups: Sequence[str] | None,
    resources: list[dict[str, str]],
    operations: str,
    host: str,
) -> list[dict[str, str]]:
    """Return the rules that the options name. Raises BadOption."""
    if allow == deny:
        raise BadOption("expected either --allow or --deny")
    principals = [*(f"User:{name}" for name in users or ()), *(f"Group:{name}" for name in user_groups or ())]
    if not principals:
        raise BadOption("expected --user or --user-group")
    permission = "allow" if allow else "deny"
    return [
        {
            "principal": principal,
            "operation": operation.strip().replace("-", "_"),
            "permission": permission,
            "host": host,
        }
        | resource
        for principal in principals
        for resource in resources
        for operation in operations.split(",")
    ]


def _change(what: str, rows: list[dict[str, str]], data: str | None, config: Any, http: str | None) -> int:
    """Add or remove rules; return how many were."""
    import msgspec

    from duolog.bridge.security.rules import BadRule
    from duolog.bridge.security.tools.rule_texts import RuleText, rule_of

    try:
        return _apply(what, [rule_of(msgspec.convert(row, RuleText)) for row in rows], data, config, http)
    except BadRule as error:
        raise BadOption(str(error)) from error


def _apply(what: str, rules: "Sequence[Rule]", data: str | None, config: Any, http: str | None) -> int:
    """Add or remove rules; return how many were."""
    import msgspec

    from duolog.bridge.security.tools.rule_texts import text_of

    if data is None:
        path = "/api/acls" if what == "add" else "/api/acls/remove"
        rows = [msgspec.to_builtins(text_of(rule)) for rule in rules]
        answer: dict[str, int] = writing(http).post(path, {"rules": rows})
        return next(iter(answer.values()))
    with offline(data, config) as core:
        acls, now_ms = core.security.acls, core.clock.now_ms()
        before = len(acls)
        (acls.add if what == "add" else acls.remove)(rules, now_ms)
        return abs(len(acls) - before)
