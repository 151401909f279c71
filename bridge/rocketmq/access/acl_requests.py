"""Access rules, which tools see as ACL 2.0 policies: AUTH_CREATE_ACL (3006) to AUTH_LIST_ACL (3010).

They are the rules of all protocols (`policies.py`). Source: `AdminBrokerProcessor.java`,
`AuthorizationMetadataManagerImpl.java`.
"""

from collections.abc import Iterable, Iterator

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.access.policies import CUSTOM, Resource, acl_of, check_subject, resources_of, rules_of
from duolog.bridge.rocketmq.access.user_requests import check_enabled, refused
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer, read_body
from duolog.bridge.security.rules import USER, Rule
from duolog.protocol.rocketmq.auth import AclInfo, DeleteAclRequest, ListAclsRequest, SubjectRequest
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.remoting import RemotingCommand


def set_acl(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer AUTH_CREATE_ACL and AUTH_UPDATE_ACL: replace the policies for the resources that the request names."""
    check_enabled(context)
    subject = SubjectRequest.parse(command.ext).subject
    wanted = rules_of(read_body(command, AclInfo), subject, context.options.rocketmq.cluster)
    context.security.users.known(subject.removeprefix(USER))
    acls, now_ms = context.security.acls, context.clock.now_ms()
    new = [rule for rules in wanted.values() for rule in rules]
    kept = set(new)
    old = [rule for rule in _rules_on(context, subject, wanted) if rule not in kept]
    # The new rules first: after a crash between the two, no deny is missing.
    promises = (acls.add(new, now_ms), acls.remove(old, now_ms))
    return answer(command, promise=promises[1] or promises[0] or context.state_log.barrier())


def _rules_on(context: RocketMQContext, subject: str, resources: Iterable[Resource]) -> list[Rule]:
    """Return the rules of a subject on exactly these resources."""
    wanted = set(resources)
    return [rule for rule in _rules_of(context, subject) if (rule.resource_type, rule.name, rule.pattern) in wanted]


def _rules_of(context: RocketMQContext, subject: str) -> list[Rule]:
    return [rule for rule in context.security.acls.all() if rule.principal == subject]


def delete_acl(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer AUTH_DELETE_ACL: remove the policies for one resource, or all policies of the subject."""
    check_enabled(context)
    request = DeleteAclRequest.parse(command.ext)
    if request.policy_type not in (None, "", CUSTOM):
        raise refused(f"policyType: only {CUSTOM} is supported, got {request.policy_type!r:.60}")
    check_subject(request.subject)
    of = resources_of(request.resource, context.options.rocketmq.cluster) if request.resource else None
    rules = _rules_of(context, request.subject) if of is None else _rules_on(context, request.subject, of)
    promise = context.security.acls.remove(rules, context.clock.now_ms())
    if promise is None:
        raise RequestRefused(ResponseCode.POLICY_NOT_EXIST, "the subject has no policy for this resource")
    return answer(command, promise=promise)


def get_acl(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer AUTH_GET_ACL. Tools take an answer without a body as "there are no policies"."""
    check_enabled(context)
    subject = SubjectRequest.parse(command.ext).subject
    found = acl_of(subject, _rules_of(context, subject), context.options.rocketmq.cluster)
    return answer(command) if found is None else answer(command, body=found)


def list_acls(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer AUTH_LIST_ACL with the subjects that contain `subjectFilter`, and of them resources likewise."""
    check_enabled(context)
    request = ListAclsRequest.parse(command.ext)
    by_subject: dict[str, list[Rule]] = {}
    for rule in context.security.acls.all():
        if (request.subject_filter or "") in rule.principal:
            by_subject.setdefault(rule.principal, []).append(rule)
    cluster_name, part = context.options.rocketmq.cluster, request.resource_filter or ""
    found = (acl_of(subject, rules, cluster_name) for subject, rules in by_subject.items())
    shown = [each for acl in found if acl is not None for each in _only(acl, part)]
    return answer(command, body=fastjson.write(shown))


def _only(acl: AclInfo, part: str) -> Iterator[AclInfo]:
    """Yield the policies for resources that contain `part`, unless there are none."""
    (policy,) = acl.policies
    policy.entries = [entry for entry in policy.entries if part in entry.resource]
    if policy.entries:
        yield acl
