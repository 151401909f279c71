"""The decision follows its table: deny overrides, implied operations, hosts, groups, and no rule means no."""

import pytest

from duolog.bridge.config import Options, SecurityOptions
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.records import codec
from duolog.bridge.records.security import ScramVerifier, UserSet
from duolog.bridge.security.acls import Acls, TooManyRules
from duolog.bridge.security.needs import Need, first_refused
from duolog.bridge.security.resources import Resources
from duolog.bridge.security.rules import BadRule, Operation, ResourceType, Rule
from duolog.bridge.security.scram import Mechanism
from duolog.bridge.security.security import Security
from duolog.bridge.security.session import DECISIONS_MAX, Session
from duolog.bridge.security.tools.rule_texts import RuleText, rule_of, text_of
from duolog.bridge.security.users import TooManyUsers, UnknownUser, UserError, UserExists
from duolog.store.state_log import StateLog
from tests.kit.clock import ManualClock
from tests.kit.memory_log import MemoryLog

NOW = 1_700_000_000_000
VERIFIER = ScramVerifier(b"salt", 4096, b"stored", b"server")


def rule(permission: str, who: str, resource: str, name: str, operation: str, host: str = "*") -> Rule:
    pattern = "prefixed" if name.endswith("~") else "literal"
    return rule_of(RuleText(who, resource, operation, permission, name.rstrip("~"), pattern, host))


class Bench:
    """Users and rules on a log in memory."""

    def __init__(self, **settings: object) -> None:
        self.state_log = StateLog(codec, PoisonRecords())
        self.log = MemoryLog()
        options = Options(security=SecurityOptions(enabled=True, **settings))  # type: ignore[arg-type]
        self.security = Security(self.state_log, options, ManualClock())
        self.state_log.attach(self.log)

    def user(self, name: str, verifier: ScramVerifier = VERIFIER, **fields: object) -> None:
        values = {"is_super": False, "groups": (), "scram_sha_512": None, "encrypted_secret": b""} | fields
        self.security.users.set(UserSet(name=name, scram_sha_256=verifier, set_ms=NOW, **values), NOW)  # type: ignore[arg-type]

    def session(self, name: str, host: str = "10.0.0.7") -> Session:
        user = self.security.users.get(name)
        assert user is not None
        return Session(name, host, login=user.login, groups=user.record.groups)

    def may(self, session: Session, operation: str, name: str, resource: str = "topic") -> bool:
        return self.security.authorizer.allows(
            session, ResourceType[resource.upper()], name, Operation[operation.upper()]
        )


CASES = [
    # rules of alice, then (operation, name, decision)
    ([], ("read", "orders", False)),
    ([("allow", "User:alice", "topic", "orders", "read")], ("read", "orders", True)),
    ([("allow", "User:alice", "topic", "orders", "read")], ("write", "orders", False)),
    ([("allow", "User:alice", "topic", "orders", "read")], ("describe", "orders", True)),
    ([("allow", "User:alice", "topic", "orders", "alter_configs")], ("describe_configs", "orders", True)),
    ([("allow", "User:alice", "topic", "orders", "describe")], ("read", "orders", False)),
    ([("allow", "User:alice", "topic", "orders", "all")], ("delete", "orders", True)),
    ([("allow", "User:alice", "topic", "ord~", "read")], ("read", "orders", True)),
    ([("allow", "User:alice", "topic", "ord~", "read")], ("read", "or", False)),
    ([("allow", "User:alice", "topic", "*", "read")], ("read", "orders", True)),
    ([("allow", "User:*", "topic", "orders", "read")], ("read", "orders", True)),
    ([("allow", "Group:devs", "topic", "orders", "read")], ("read", "orders", True)),
    ([("allow", "Group:ops", "topic", "orders", "read")], ("read", "orders", False)),
    ([("allow", "User:alice", "group", "orders", "read")], ("read", "orders", False)),
    ([("allow", "User:alice", "topic", "orders", "read", "10.0.0.0/24")], ("read", "orders", True)),
    ([("allow", "User:alice", "topic", "orders", "read", "10.0.0.8")], ("read", "orders", False)),
    # Deny overrides, also a more specific allow, and a deny of READ leaves what it does not name.
    (
        [("allow", "User:alice", "topic", "orders", "all"), ("deny", "User:alice", "topic", "or~", "read")],
        ("read", "orders", False),
    ),
    (
        [("allow", "User:alice", "topic", "orders", "all"), ("deny", "User:*", "topic", "*", "read")],
        ("describe", "orders", True),
    ),
    (
        [
            ("allow", "User:alice", "topic", "orders", "all"),
            ("deny", "User:alice", "topic", "orders", "all", "1.2.3.4"),
        ],
        ("read", "orders", True),
    ),
    # A host is the same address in its IPv6 form.
    (
        [
            ("allow", "User:alice", "topic", "orders", "all"),
            ("deny", "User:alice", "topic", "*", "all", "::ffff:10.0.0.0/120"),
        ],
        ("read", "orders", False),
    ),
    # RocketMQ's spelling of a name is the same resource.
    ([("allow", "User:alice", "topic", "orders|eu", "read")], ("read", "orders.eu", True)),
]


@pytest.mark.parametrize(("rules", "asked"), CASES)
def test_decision_is_that_of_the_rules(rules: list[tuple[str, ...]], asked: tuple[str, str, bool]) -> None:
    bench = Bench()
    bench.user("alice", groups=("devs",))
    bench.security.acls.add([rule(*each) for each in rules], NOW)
    operation, name, decision = asked
    assert bench.may(bench.session("alice"), operation, name) is decision


@pytest.mark.parametrize("settings", [{}, {"allow_if_no_rule": True}])
def test_right_on_all_topics_is_on_each_of_them(settings: dict[str, bool]) -> None:
    bench = Bench(**settings)
    bench.user("alice")
    session = bench.session("alice")

    def may_all() -> bool:
        need = (Need(ResourceType.TOPIC, "*", Operation.READ),)
        return first_refused(bench.security.authorizer, session, [need]) is None

    assert may_all() is bool(settings)
    bench.security.acls.add([rule("allow", "User:bob", "topic", "pay", "read")], NOW)
    assert not may_all(), "a topic with a rule is that of the rule"
    bench.security.acls.add([rule("allow", "User:alice", "topic", "*", "read")], NOW)
    assert may_all()
    bench.security.acls.add([rule("deny", "User:alice", "topic", "sec~", "read")], NOW)
    assert not may_all()


def test_super_user_may_everything_until_it_is_none() -> None:
    bench = Bench()
    bench.user("root", is_super=True)
    session = bench.session("root")
    bench.security.acls.add([rule("deny", "User:root", "topic", "*", "all")], NOW)
    assert bench.may(session, "delete", "orders")
    bench.user("root")
    assert not bench.may(session, "delete", "orders")


def test_taken_right_removed_user_and_new_password_count_at_once() -> None:
    bench = Bench()
    bench.user("alice")
    session, read = bench.session("alice"), rule("allow", "User:alice", "topic", "orders", "read")
    bench.security.acls.add([read], NOW)
    assert bench.may(session, "read", "orders")
    bench.security.acls.remove([read], NOW)
    assert not bench.may(session, "read", "orders")
    bench.security.acls.add([read], NOW)
    assert bench.may(session, "read", "orders")
    bench.user("alice", VERIFIER._replace(stored_key=b"new"))
    assert not bench.may(session, "read", "orders")
    assert bench.may(bench.session("alice"), "read", "orders")
    renewed = bench.session("alice")
    bench.security.users.remove("alice", NOW)
    assert not bench.may(renewed, "read", "orders")
    bench.user("alice")
    assert not bench.may(renewed, "read", "orders"), "another user of the same name"


def test_without_rules_the_setting_decides() -> None:
    bench = Bench(allow_if_no_rule=True)
    bench.user("alice")
    session = bench.session("alice")
    assert bench.may(session, "read", "orders")
    bench.security.acls.add([rule("allow", "User:bob", "topic", "orders", "read")], NOW)
    assert not bench.may(session, "read", "orders")
    assert bench.may(session, "read", "payments")


def test_some_resource_is_enough_where_any_is_asked() -> None:
    bench = Bench()
    bench.user("alice")
    session, authorizer = bench.session("alice"), bench.security.authorizer
    assert not authorizer.allows_some(session, ResourceType.TOPIC, Operation.WRITE)
    bench.security.acls.add([rule("allow", "User:alice", "topic", "ord~", "write")], NOW)
    assert authorizer.allows_some(session, ResourceType.TOPIC, Operation.WRITE)
    bench.security.acls.add([rule("deny", "User:alice", "topic", "o~", "write")], NOW)
    assert not authorizer.allows_some(session, ResourceType.TOPIC, Operation.WRITE)


def test_all_resources_are_allowed_until_a_rule_takes_one() -> None:
    bench = Bench()
    bench.user("alice")
    session, authorizer, acls = bench.session("alice"), bench.security.authorizer, bench.security.acls
    acls.add([rule("allow", "User:alice", "topic", "ord~", "read")], NOW)
    assert not authorizer.allows_every(session, ResourceType.TOPIC, Operation.READ)
    acls.add([rule("allow", "User:alice", "topic", "*", "read")], NOW)
    assert authorizer.allows_every(session, ResourceType.TOPIC, Operation.READ)
    acls.add([rule("deny", "User:bob", "topic", "orders", "read")], NOW)
    assert authorizer.allows_every(session, ResourceType.TOPIC, Operation.READ)
    acls.add([rule("deny", "User:*", "topic", "pay~", "read")], NOW)
    assert not authorizer.allows_every(session, ResourceType.TOPIC, Operation.READ)


def test_a_rule_for_others_takes_what_is_allowed_without_rules() -> None:
    bench = Bench(allow_if_no_rule=True)
    bench.user("alice")
    session, authorizer = bench.session("alice"), bench.security.authorizer
    assert authorizer.allows_every(session, ResourceType.TOPIC, Operation.READ)
    bench.security.acls.add([rule("allow", "User:bob", "topic", "orders", "read")], NOW)
    assert not authorizer.allows_every(session, ResourceType.TOPIC, Operation.READ)
    assert authorizer.allows_some(session, ResourceType.TOPIC, Operation.READ)


def test_replay_gives_the_same_users_and_rules() -> None:
    bench = Bench()
    bench.user("alice", groups=("devs",))
    bench.user("bob", is_super=True)
    bench.security.users.remove("bob", NOW)
    rules = [rule("allow", "User:alice", "topic", f"t{number}", "read") for number in range(700)]
    bench.security.acls.add(rules, NOW)
    bench.security.acls.remove(rules[:5], NOW)
    snapshot = bench.state_log.snapshot()
    second = Bench()
    for payload in snapshot:
        second.state_log.replay_state(payload, None)  # type: ignore[arg-type]
    assert [(user.name, *user.record.groups) for user in second.security.users.all()] == [("alice", "devs")]
    assert second.security.users.get("alice").verifier(Mechanism.SHA_256) == VERIFIER  # type: ignore[union-attr]
    assert list(second.security.acls.all()) == rules[5:]


def test_tables_have_limits_and_names_are_checked() -> None:
    bench = Bench(users_max=1, rules_max=2)  # security.users_max, security.rules_max
    bench.user("alice")
    with pytest.raises(TooManyUsers, match="users_max is 1"):
        bench.user("bob")
    acls: Acls = bench.security.acls
    with pytest.raises(TooManyRules, match="rules_max is 2"):
        acls.add([rule("allow", "User:a", "topic", name, "read") for name in "abc"], NOW)
    assert len(acls) == 0
    record = next(iter(bench.security.users.all())).record
    with pytest.raises(UserExists):
        bench.security.users.set(record, NOW, is_new=True)
    with pytest.raises(UnknownUser):
        bench.security.users.remove("carol", NOW)
    for name in ("", "a b", "*", "a:b", "x" * 256):
        with pytest.raises(UserError):
            Bench().user(name)
    for text in (
        RuleText("Robot:a", "topic", "read"), RuleText("User:", "topic", "read"), RuleText("a", "subject", "read"),
        RuleText("a", "topic", "read", name=""), RuleText("a", "topic", "read", host="nowhere"),
        RuleText("a", "topic", "any"), RuleText("a", "topic", "read", permission="maybe"),
    ):  # fmt: skip
        with pytest.raises(BadRule):
            rule_of(text)
    known = rule("deny", "Group:ops", "transactional_id", "tx~", "write", "10.0.0.0/8")
    assert rule_of(text_of(known)) == known


@pytest.mark.parametrize(
    ("topic", "operation", "needs"),
    [
        ("orders", "read", ["READ on topic orders"]),
        ("..DLQ..g", "read", ["READ on group g", "READ on topic orders"]),
        ("..RETRY..g", "write", ["READ on group g", "READ on topic orders"]),
        ("..RETRY..g+payments", "read", ["READ on group g", "READ on topic payments"]),
        ("..RETRY..unknown", "read", ["READ on group unknown", "READ on topic *"]),
        ("..DLQ..g", "delete", ["DELETE on group g"]),
        ("SCHEDULE_TOPIC_XXXX", "read", ["READ on cluster"]),
        ("rmq_sys_wheel_timer", "read", ["READ on cluster"]),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "describe", ["DESCRIBE on cluster"]),
        ("RMQ_SYS_TRACE_TOPIC", "write", ["WRITE on topic RMQ_SYS_TRACE_TOPIC"]),
        ("RMQ_SYS_TRACE_TOPIC", "read", ["READ on cluster"]),
    ],
)
def test_topics_with_messages_of_others_need_the_rights_on_those(topic: str, operation: str, needs: list[str]) -> None:
    resources = Resources(lambda group: ("orders",) if group == "g" else ())
    found = resources.topic(topic, Operation[operation.upper()])
    assert [str(need) for (need,) in found] == needs


def test_decisions_that_a_session_remembers_are_bounded() -> None:
    bench = Bench()
    bench.user("alice")
    bench.security.acls.add([rule("allow", "User:alice", "topic", "orders~", "read")], NOW)
    session = bench.session("alice")
    for number in range(3 * DECISIONS_MAX):
        assert bench.may(session, "read", f"orders{number}")
        assert not bench.may(session, "read", f"payments{number}")
        assert 0 < len(session.decisions) <= DECISIONS_MAX
    assert bench.may(session, "read", "orders0"), "what was forgotten is decided again"


@pytest.mark.parametrize(
    ("hosts", "open_to"),
    [
        (["127.0.0.1", "::1", "127.0.0.9"], ""),
        (["127.0.0.1", "0.0.0.0"], "0.0.0.0"),
        (["::"], "::"),
        (["10.0.0.1"], "10.0.0.1"),
    ],
)
def test_open_broker_is_named_unless_it_listens_on_loopback_alone(hosts: list[str], open_to: str) -> None:
    listening = [(host, 9092) for host in hosts]
    assert Security(StateLog(codec, PoisonRecords()), Options(), ManualClock()).open_to(listening) == open_to
    assert Bench().security.open_to(listening) == ""
