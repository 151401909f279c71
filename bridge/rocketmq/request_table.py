"""The table of RocketMQ requests: the handler and the limits of each code. Other codes are answered "not supported".

A handler is a function `(context, connection, command) -> Answer | None`. It may raise the exceptions in
`errors.ANSWERABLE`.
"""

from collections.abc import Callable

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.access import acl_requests, user_requests
from duolog.bridge.rocketmq.access.requirements import NEEDS, send
from duolog.bridge.rocketmq.admin import broker_settings, group_stats, groups, inspection, single_broker, topics
from duolog.bridge.rocketmq.admin.query_messages import query_message
from duolog.bridge.rocketmq.admin.view_message import view_message
from duolog.bridge.rocketmq.consuming import (
    assignment,
    heartbeats,
    offset_resets,
    offsets,
)
from duolog.bridge.rocketmq.consuming.pull import pull_message
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.namesrv import routes
from duolog.bridge.rocketmq.pop import peek, pop_acks, pop_message
from duolog.bridge.rocketmq.producing.half_messages import end_transaction
from duolog.bridge.rocketmq.producing.recall import recall_message
from duolog.bridge.rocketmq.producing.reply import send_reply
from duolog.bridge.rocketmq.producing.send import send_message
from duolog.bridge.rocketmq.requests.admission import LIMITED, Kind
from duolog.bridge.rocketmq.requests.background_requests import BACKGROUND_KINDS
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.request_row import Row
from duolog.bridge.rocketmq.retry.send_back import send_back
from duolog.protocol.rocketmq.codes import RequestCode as Code
from duolog.protocol.rocketmq.headers import SendRequest
from duolog.protocol.rocketmq.remoting import RemotingCommand

# Returns the answer. None means that the answer is sent later (a long poll), or that the request has none.
Handler = Callable[[RocketMQContext, RocketMQConnection, RemotingCommand], Answer | None]

_HANDLERS: dict[Code, Handler] = {
    # -- Messages
    Code.SEND_MESSAGE: send_message,
    Code.SEND_MESSAGE_V2: send_message,
    Code.SEND_BATCH_MESSAGE: send_message,
    Code.SEND_REPLY_MESSAGE: send_reply,
    Code.SEND_REPLY_MESSAGE_V2: send_reply,
    Code.RECALL_MESSAGE: recall_message,
    Code.PULL_MESSAGE: pull_message,
    Code.LITE_PULL_MESSAGE: pull_message,
    Code.VIEW_MESSAGE_BY_ID: view_message,
    Code.QUERY_MESSAGE: query_message,
    Code.CONSUMER_SEND_MSG_BACK: send_back,
    Code.END_TRANSACTION: end_transaction,
    # -- Popping
    Code.POP_MESSAGE: pop_message.pop_message,
    Code.ACK_MESSAGE: pop_acks.ack_message,
    Code.BATCH_ACK_MESSAGE: pop_acks.batch_ack_message,
    Code.CHANGE_MESSAGE_INVISIBLETIME: pop_acks.change_invisible_time,
    Code.NOTIFICATION: peek.notification,
    Code.PEEK_MESSAGE: peek.peek_message,
    Code.POLLING_INFO: peek.polling_info,
    Code.QUERY_ASSIGNMENT: assignment.query_assignment,
    Code.SET_MESSAGE_REQUEST_MODE: assignment.set_request_mode,
    # -- Offsets
    Code.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    Code.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
    Code.GET_MAX_OFFSET: offsets.max_offset,
    Code.GET_MIN_OFFSET: offsets.min_offset,
    Code.GET_EARLIEST_MSG_STORETIME: offsets.earliest_store_time,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: offset_resets.reset_offset,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: offset_resets.consumer_status,
    # -- Members of groups
    Code.HEART_BEAT: heartbeats.heart_beat,
    Code.UNREGISTER_CLIENT: heartbeats.unregister_client,
    Code.GET_CONSUMER_LIST_BY_GROUP: heartbeats.consumer_list,
    Code.CHECK_CLIENT_CONFIG: heartbeats.check_client_config,
    Code.LOCK_BATCH_MQ: heartbeats.lock_queues,
    Code.UNLOCK_BATCH_MQ: heartbeats.unlock_queues,
    # -- Name server
    Code.GET_ROUTEINFO_BY_TOPIC: routes.route,
    Code.GET_BROKER_CLUSTER_INFO: routes.cluster_info,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: routes.all_topics,
    Code.GET_TOPICS_BY_CLUSTER: routes.topics_of_cluster,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: routes.system_topics,
    Code.DELETE_TOPIC_IN_NAMESRV: routes.forget_topic,
    Code.GET_KV_CONFIG: routes.kept_value,
    Code.GET_KVLIST_BY_NAMESPACE: routes.kept_values,
    Code.PUT_KV_CONFIG: routes.keep_value,
    Code.DELETE_KV_CONFIG: routes.delete_value,
    Code.WIPE_WRITE_PERM_OF_BROKER: routes.wipe_write_perm,
    Code.ADD_WRITE_PERM_OF_BROKER: routes.add_write_perm,
    Code.GET_NAMESRV_CONFIG: routes.namesrv_config,
    # -- Topics and groups
    Code.UPDATE_AND_CREATE_TOPIC: topics.update_topic,
    Code.DELETE_TOPIC_IN_BROKER: topics.delete_topic,
    Code.GET_ALL_TOPIC_CONFIG: topics.topic_configs,
    Code.GET_TOPIC_CONFIG: topics.topic_config,
    Code.GET_TOPIC_STATS_INFO: topics.topic_stats,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update_group,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.group_configs,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: groups.group_config,
    Code.GET_CONSUME_STATS: group_stats.consume_stats,
    Code.GET_CONSUMER_CONNECTION_LIST: group_stats.consumer_connections,
    Code.GET_PRODUCER_CONNECTION_LIST: group_stats.producer_connections,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: topics.update_topics,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.update_groups,
    Code.DELETE_SUBSCRIPTIONGROUP: groups.delete_group,
    # -- Inspection by tools
    Code.QUERY_TOPIC_CONSUME_BY_WHO: inspection.groups_of_topic,
    Code.QUERY_TOPICS_BY_CONSUMER: inspection.topics_of_group,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: inspection.subscription_of_group,
    Code.GET_BROKER_CONSUME_STATS: inspection.stats_of_groups,
    Code.GET_ALL_PRODUCER_INFO: inspection.producers,
    Code.GET_CONSUMER_RUNNING_INFO: inspection.running_info,
    Code.CONSUME_MESSAGE_DIRECTLY: inspection.consume_directly,
    Code.VIEW_BROKER_STATS_DATA: inspection.stats_data,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: inspection.system_topics,
    Code.QUERY_CONSUME_QUEUE: inspection.consume_queue,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: inspection.clean,
    Code.CLEAN_UNUSED_TOPIC: inspection.clean,
    Code.DELETE_EXPIRED_COMMITLOG: inspection.clean,
    # -- The broker
    Code.GET_BROKER_CONFIG: broker_settings.broker_config,
    Code.UPDATE_BROKER_CONFIG: broker_settings.update_broker_config,
    Code.GET_BROKER_RUNTIME_INFO: broker_settings.broker_runtime,
    # -- Users and access rules
    Code.AUTH_CREATE_USER: user_requests.create_user,
    Code.AUTH_UPDATE_USER: user_requests.update_user,
    Code.AUTH_DELETE_USER: user_requests.delete_user,
    Code.AUTH_GET_USER: user_requests.get_user,
    Code.AUTH_LIST_USER: user_requests.list_users,
    Code.AUTH_CREATE_ACL: acl_requests.set_acl,
    Code.AUTH_UPDATE_ACL: acl_requests.set_acl,
    Code.AUTH_DELETE_ACL: acl_requests.delete_acl,
    Code.AUTH_GET_ACL: acl_requests.get_acl,
    Code.AUTH_LIST_ACL: acl_requests.list_acls,
    # -- Answers that are fixed because there is one broker
    Code.GET_BROKER_HA_STATUS: single_broker.ha_status,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: single_broker.cold_data,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: single_broker.rocksdb_progress,
    Code.UPDATE_NAMESRV_CONFIG: single_broker.update_namesrv_config,
}

# The kinds of requests (`admission.py`). Requests that are not listed are ADMIN.
_KINDS: dict[Kind, tuple[Code, ...]] = {
    Kind.SEND: (
        Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE,
        Code.SEND_REPLY_MESSAGE_V2, Code.RECALL_MESSAGE, Code.CONSUMER_SEND_MSG_BACK,
    ),
    Kind.TRANSACTION: (Code.END_TRANSACTION,),
    Kind.ACK: (
        Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME, Code.UPDATE_CONSUMER_OFFSET,
        Code.QUERY_CONSUMER_OFFSET,
    ),
    Kind.PULL: (
        Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.POP_MESSAGE, Code.NOTIFICATION, Code.PEEK_MESSAGE,
    ),
    Kind.QUERY: (Code.QUERY_MESSAGE, Code.VIEW_MESSAGE_BY_ID),
    Kind.CLIENT: (
        Code.HEART_BEAT, Code.UNREGISTER_CLIENT, Code.GET_CONSUMER_LIST_BY_GROUP, Code.CHECK_CLIENT_CONFIG,
        Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.QUERY_ASSIGNMENT, Code.GET_ROUTEINFO_BY_TOPIC,
    ),
}  # fmt: skip
_KIND_OF: dict[Code, Kind] = {code: kind for kind, codes in _KINDS.items() for code in codes}


def _row(code: Code, handler: Handler) -> Row:
    kind = _KIND_OF.get(code, Kind.ADMIN)
    return Row(
        handler,
        ("rocketmq", code.name),
        f"rocketmq {code.name}",
        kind,
        kind in LIMITED,
        NEEDS[code],
        kind in BACKGROUND_KINDS,
        SendRequest.topic_of if NEEDS[code] is send else None,
    )


TABLE: dict[int, Row] = {code: _row(code, handler) for code, handler in _HANDLERS.items()}
