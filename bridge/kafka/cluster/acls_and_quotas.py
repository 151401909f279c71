"""ACLs 1..3 and DescribeClientQuotas 0..1, answered as by a Kafka broker that has no authorizer and no quotas."""

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import NO_THROTTLE, KafkaRequest, Steps
from duolog.bridge.net.answers import Answer
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.response import Elements

_DISABLED = {"error_code": ErrorCode.security_disabled, "error_message": "No Authorizer is configured."}


def describe_acls(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Answer:
    """Answer SECURITY_DISABLED."""
    return request.answer(request.types.DescribeAclsResponse(throttle_time=NO_THROTTLE, resources=(), **_DISABLED))


def create_acls(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Answer SECURITY_DISABLED for each ACL."""
    results = Elements(request.types.AclCreationResult(**_DISABLED) for _ in request.body.creations)
    entity = request.types.CreateAclsResponse(throttle_time=NO_THROTTLE, results=results)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), None)


def delete_acls(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Answer SECURITY_DISABLED for each filter."""
    results = Elements(
        request.types.DeleteAclsFilterResult(matching_acls=(), **_DISABLED) for _ in request.body.filters
    )
    entity = request.types.DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=results)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), None)


def describe_client_quotas(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Answer:
    """Answer that no quota is set: with an empty list, because Java's AdminClient treats null as an error."""
    entity = request.types.DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, entries=()
    )
    return request.answer(entity)
