"""Configs of consumer groups, which clients and tools read and change.

    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200) and ..._LIST (225), DELETE_SUBSCRIPTIONGROUP (207),
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), GET_SUBSCRIPTIONGROUP_CONFIG (352)

The paging fields of requests are ignored: an answer has the whole table, which tools accept.
Source: AdminBrokerProcessor.java.
"""

from typing import Final

import msgspec

from duolog.bridge.config import DAY_MS
from duolog.bridge.net.answers import Answer
from duolog.bridge.records.groups import GroupDeleted
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.background_requests import Steps
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.json_answers import Pieces, member
from duolog.bridge.rocketmq.requests.responses import answer, read_body
from duolog.bridge.rocketmq.retry.retry_delays import check_policy
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.bodies import (
    DataVersion,
    GroupConfigList,
    SubscriptionGroupConfig,
)
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import (
    DeleteGroupRequest,
    GroupRequest,
)
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.names import (
    SYSTEM_GROUPS,
    check_group,
)
from duolog.protocol.rocketmq.remoting import RemotingCommand

GROUPS_AT_ONCE: Final = 40
ATTRIBUTES_MAX: Final = 128  # Attributes of one group in UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.
# A config is kept in memory with all its attributes, which a client may name freely.
GROUP_CONFIG_BYTES_MAX: Final = 8 << 10


def update_group(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: set the config of a group, which is created if necessary."""
    config = _altered(context, read_body(command, SubscriptionGroupConfig))
    _check_group_config(context, config)
    return answer(command, promise=context.groups.configs.configure(config, context.clock.now_ms()))


def _altered(context: RocketMQContext, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """Return the config with changed attributes: `+name` sets one, `-name` removes one, `name` sets one, too."""
    if len(config.attributes) > ATTRIBUTES_MAX:
        remark = f"group config with {len(config.attributes)} attributes; {ATTRIBUTES_MAX} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    known = context.groups.configs.get(config.group_name)
    attributes = dict(known.attributes) if known is not None else {}
    for signed, value in config.attributes.items():
        if signed.startswith("-"):
            attributes.pop(signed[1:], None)
        else:
            attributes[signed.removeprefix("+")] = value
    return msgspec.structs.replace(config, attributes=attributes)


def _check_group_config(context: RocketMQContext, config: SubscriptionGroupConfig) -> None:
    check_group(config.group_name)
    size = len(fastjson.write(config))
    if size > GROUP_CONFIG_BYTES_MAX:
        remark = f"group config of {size} bytes; {GROUP_CONFIG_BYTES_MAX} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    check_policy(config.group_retry_policy, context.options.delay.max_days * DAY_MS)


def group_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Return the config of a group, which is created if necessary: Apache's gRPC proxy asks before the first pop."""
    name = GroupRequest.parse(command.ext).group
    context.groups.configs.ensure_if_writable((name,), context.clock.now_ms())
    config = context.groups.configs.find(name)
    if config is None:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name[:200]}")
    return answer(command, body=config, promise=context.state_log.barrier())


def group_configs(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return connection.in_slices(command, _group_configs(context, command))


def _group_configs(context: RocketMQContext, command: RemotingCommand) -> Steps:
    configs, version, pieces = list(context.groups.configs.all()), context.groups.configs.version, Pieces()
    pieces.add(b'{"subscriptionGroupTable":{')
    yield from pieces.rows(configs, lambda config: member(config.group_name, config))
    # Java's tools fail if the last member is missing.
    pieces.add(b"}," + member("dataVersion", DataVersion(counter=version)) + b',"forbiddenTable":{}}')
    ext = {"totalGroupNum": str(len(configs))}
    return answer(command, ext=ext, body=pieces.buffers, promise=context.state_log.barrier())


def update_groups(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Change the configs of several groups in order. If one is refused, the changes before it remain."""
    configs = read_body(command, GroupConfigList).group_config_list
    return connection.in_slices(command, _update_groups(context, command, configs))


def _update_groups(context: RocketMQContext, command: RemotingCommand, configs: list[SubscriptionGroupConfig]) -> Steps:
    promise = context.state_log.barrier()
    for number, config in enumerate(configs, 1):
        altered = _altered(context, config)
        _check_group_config(context, altered)
        promise = context.groups.configs.configure(altered, context.clock.now_ms())
        if not number % GROUPS_AT_ONCE:
            yield
    return answer(command, promise=promise)


def delete_group(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Delete a group's config, and its committed offsets if requested. An unknown group is no error."""
    request = DeleteGroupRequest.parse(command.ext)
    if request.group_name in SYSTEM_GROUPS:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{request.group_name} is a group of the system's own")
    group, now_ms = group_of_rocketmq(request.group_name), context.clock.now_ms()
    if request.clean_offset:
        return answer(command, promise=context.groups.group_offsets.delete_group(group, now_ms))
    context.groups.group_offsets.commit_collected(group, now_ms)
    records = [GroupDeleted(group), *context.groups.group_offsets.kept(group)]
    return answer(command, promise=context.state_log.commit(records, now_ms).promise)
