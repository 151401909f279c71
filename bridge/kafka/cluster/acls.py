"""DescribeAcls, CreateAcls and DeleteAcls 1..3: the access rules, as `kafka-acls.sh` uses them.

A rule of a kind that does not exist here (delegation tokens, users) is INVALID_REQUEST. While `security.enabled` is
off, every request is answered SECURITY_DISABLED, as by a Kafka broker without an authorizer: whoever reaches an open
port could leave rules behind for later.
"""

from collections.abc import Generator, Iterable, Iterator
from enum import IntEnum
from itertools import groupby
from typing import Any, Final, TypeVar

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.errors import InvalidRequest
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import NO_THROTTLE, KafkaRequest, Steps
from duolog.bridge.security.acls import TooManyRules
from duolog.bridge.security.rules import BadRule, Operation, Pattern, Permission, ResourceType, Rule, canonical, checked
from duolog.bridge.security.tools.rule_filter import RuleFilter
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.response import Elements
from duolog.store.errors import StoreError

NumberT = TypeVar("NumberT", bound=IntEnum)
_DISABLED: Final = {"error_code": ErrorCode.security_disabled, "error_message": "security.enabled is off"}
_DONE: Final = {"error_code": ErrorCode.none, "error_message": None}
_ANY, _MATCH = 1, 2  # ANY of each enumeration, and MATCH of PatternType.java.
_RULES_IN_STEP: Final = 1000


def describe_acls(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """List the rules that the filter takes, by resource."""
    types = request.types
    resources: Iterable[Any] = ()
    outcome: dict[str, Any] = _DISABLED
    if context.security.is_enabled:
        try:
            found = yield from _found(context, _filter_of(request.body))
            resources, outcome = _resources(types, found), _DONE
        except InvalidRequest as error:
            outcome = _refused(error)
    entity = types.DescribeAclsResponse(throttle_time=NO_THROTTLE, resources=Elements(resources), **outcome)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def create_acls(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Add the rules that are valid, all in one unit; the others get an error each."""
    outcomes: list[dict[str, Any]] = []
    rules: list[Rule] = []
    for creation in request.body.creations:
        outcome: dict[str, Any] = _DISABLED
        if context.security.is_enabled:
            try:
                rules.append(_rule_of(creation))
                outcome = _DONE
            except (InvalidRequest, BadRule) as error:
                outcome = _refused(error)
        outcomes.append(outcome)
        yield
    promise = context.barrier()
    try:
        promise = context.security.acls.add(rules, context.clock.now_ms()) or promise
    except (TooManyRules, StoreError) as error:
        failed = _refused(error, ErrorCode.policy_violation)
        outcomes = [failed if outcome is _DONE else outcome for outcome in outcomes]
    results = Elements(request.types.AclCreationResult(**outcome) for outcome in outcomes)
    entity = request.types.CreateAclsResponse(throttle_time=NO_THROTTLE, results=results)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), promise)


def delete_acls(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Remove the rules that each filter takes, and list them."""
    types = request.types
    results = []
    promise = context.barrier()
    for asked in request.body.filters:
        outcome: dict[str, Any] = _DISABLED
        found: list[Rule] = []
        if context.security.is_enabled:
            try:
                found = yield from _found(context, _filter_of(asked))
                promise = context.security.acls.remove(found, context.clock.now_ms()) or promise
                outcome = _DONE
            except (InvalidRequest, StoreError) as error:
                outcome, found = _refused(error), []
        removed = Elements(_matching(types, rule) for rule in found)
        results.append(types.DeleteAclsFilterResult(matching_acls=removed, **outcome))
    entity = types.DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=Elements(results))
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), promise)


# -- Requests


def _found(context: KafkaContext, wanted: RuleFilter) -> Generator[None, None, list[Rule]]:
    """Return the rules that the filter takes; the loop may turn at each yield."""
    found = []
    for at, rule in enumerate([*context.security.acls.all()]):
        if not at % _RULES_IN_STEP:
            yield
        if wanted.takes(rule):
            found.append(rule)
    return found


def _filter_of(asked: Any) -> RuleFilter:
    """Return the filter of a request. Raises InvalidRequest."""
    pattern = int(asked.pattern_type_filter)
    resource_type, name = _wanted(ResourceType, asked.resource_type_filter), asked.resource_name_filter
    return RuleFilter(
        resource_type,
        name if name is None or resource_type is None else canonical(resource_type, name),
        None if pattern == _MATCH else _wanted(Pattern, pattern),
        asked.principal_filter,
        asked.host_filter,
        _wanted(Operation, asked.operation),
        _wanted(Permission, asked.permission_type),
        pattern == _MATCH,
    )


def _rule_of(creation: Any) -> Rule:
    """Return the rule of a creation. Raises InvalidRequest and BadRule."""
    resource_type = _valid(ResourceType, creation.resource_type)
    rule = Rule(
        creation.principal,
        resource_type,
        canonical(resource_type, creation.resource_name),
        _valid(Pattern, creation.resource_pattern_type),
        _valid(Operation, creation.operation),
        creation.host,
        _valid(Permission, creation.permission_type),
    )
    return checked(rule)


def _wanted(numbers: type[NumberT], given: int) -> NumberT | None:
    """Return the number that a filter asks for; None: any."""
    return None if given == _ANY else _valid(numbers, given)


def _valid(numbers: type[NumberT], given: int) -> NumberT:
    try:
        return numbers(given)
    except ValueError:
        raise InvalidRequest(f"{numbers.__name__}: {given} is not supported") from None


# -- Answers


def _resources(types: Any, rules: list[Rule]) -> Iterator[Any]:
    def place(rule: Rule) -> tuple[int, str, int]:
        return rule.resource_type, rule.name, rule.pattern

    for (resource_type, name, pattern), of_resource in groupby(sorted(rules, key=place), place):
        acls = [
            types.AclDescription(
                principal=rule.principal,
                host=rule.host,
                operation=int(rule.operation),
                permission_type=int(rule.permission),
            )
            for rule in of_resource
        ]
        yield types.DescribeAclsResource(
            resource_type=int(resource_type), resource_name=name, pattern_type=int(pattern), acls=Elements(acls)
        )


def _matching(types: Any, rule: Rule) -> Any:
    return types.DeleteAclsMatchingAcl(
        resource_type=int(rule.resource_type),
        resource_name=rule.name,
        pattern_type=int(rule.pattern),
        principal=rule.principal,
        host=rule.host,
        operation=int(rule.operation),
        permission_type=int(rule.permission),
        **_DONE,
    )


def _refused(error: Exception, code: ErrorCode = ErrorCode.invalid_request) -> dict[str, Any]:
    return {"error_code": code, "error_message": str(error)[:1024]}
