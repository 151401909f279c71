"""RocketMQ's requests: which are served, and by whom. A code that is not here is answered "not supported".

Handlers are plain functions `(broker, connection, command) -> Answer | None`; what they may raise: `errors.ANSWERABLE`.
May import all of `bridge` but the other protocol's package.
"""

from typing import NamedTuple

from bridge.rocketmq import (
    admin,
    assignment,
    inspect,
    membership,
    namesrv,
    offsets,
    peek,
    pop,
    pop_acks,
    resets,
    single_broker,
)
from bridge.rocketmq.answer import Handler
from bridge.rocketmq.flow import LIMITED, Kind
from bridge.rocketmq.lanes import LANES
from bridge.rocketmq.pull import pull_message
from bridge.rocketmq.query import query_message
from bridge.rocketmq.recall import recall_message
from bridge.rocketmq.reply import send_reply
from bridge.rocketmq.retry import send_back
from bridge.rocketmq.send import send_message
from bridge.rocketmq.transactions import end_transaction
from bridge.rocketmq.view import view_message
from protocol.rocketmq.codes import RequestCode as Code


class Row(NamedTuple):
    handler: Handler
    counter: tuple[str, str]  # Its key in `Metrics.requests`.
    name: str  # The same as text, for faults and long turns of the loop.
    kind: Kind
    is_limited: bool  # `Flow.check` is asked first.
    has_lane: bool  # It waits for its turn (`lanes.py`).


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
    Code.POP_MESSAGE: pop.pop_message,
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
    Code.INVOKE_BROKER_TO_RESET_OFFSET: resets.reset_offset,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: resets.consumer_status,
    # -- Members of groups
    Code.HEART_BEAT: membership.heart_beat,
    Code.UNREGISTER_CLIENT: membership.unregister_client,
    Code.GET_CONSUMER_LIST_BY_GROUP: membership.consumer_list,
    Code.CHECK_CLIENT_CONFIG: membership.check_client_config,
    Code.LOCK_BATCH_MQ: membership.lock_queues,
    Code.UNLOCK_BATCH_MQ: membership.unlock_queues,
    # -- Name server
    Code.GET_ROUTEINFO_BY_TOPIC: namesrv.route,
    Code.GET_BROKER_CLUSTER_INFO: namesrv.cluster_info,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: namesrv.all_topics,
    Code.GET_TOPICS_BY_CLUSTER: namesrv.topics_of_cluster,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: namesrv.system_topics,
    Code.DELETE_TOPIC_IN_NAMESRV: namesrv.forget_topic,
    Code.GET_KV_CONFIG: namesrv.kept_value,
    Code.GET_KVLIST_BY_NAMESPACE: namesrv.kept_values,
    Code.PUT_KV_CONFIG: namesrv.keep_value,
    Code.DELETE_KV_CONFIG: namesrv.delete_value,
    Code.WIPE_WRITE_PERM_OF_BROKER: namesrv.wipe_write_perm,
    Code.ADD_WRITE_PERM_OF_BROKER: namesrv.add_write_perm,
    Code.GET_NAMESRV_CONFIG: namesrv.namesrv_config,
    # -- Topics and groups
    Code.UPDATE_AND_CREATE_TOPIC: admin.update_topic,
    Code.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
    Code.GET_ALL_TOPIC_CONFIG: admin.topic_configs,
    Code.GET_TOPIC_CONFIG: admin.topic_config,
    Code.GET_TOPIC_STATS_INFO: admin.topic_stats,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.update_group,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.group_configs,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: admin.group_config,
    Code.GET_CONSUME_STATS: admin.consume_stats,
    Code.GET_CONSUMER_CONNECTION_LIST: admin.consumer_connections,
    Code.GET_PRODUCER_CONNECTION_LIST: admin.producer_connections,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: admin.update_topics,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: admin.update_groups,
    Code.DELETE_SUBSCRIPTIONGROUP: admin.delete_group,
    # -- What tools look at
    Code.QUERY_TOPIC_CONSUME_BY_WHO: inspect.groups_of_topic,
    Code.QUERY_TOPICS_BY_CONSUMER: inspect.topics_of_group,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: inspect.subscription_of_group,
    Code.GET_BROKER_CONSUME_STATS: inspect.stats_of_groups,
    Code.GET_ALL_PRODUCER_INFO: inspect.producers,
    Code.GET_CONSUMER_RUNNING_INFO: inspect.running_info,
    Code.CONSUME_MESSAGE_DIRECTLY: inspect.consume_directly,
    Code.VIEW_BROKER_STATS_DATA: inspect.stats_data,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: inspect.system_topics,
    Code.QUERY_CONSUME_QUEUE: inspect.consume_queue,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: inspect.clean,
    Code.CLEAN_UNUSED_TOPIC: inspect.clean,
    Code.DELETE_EXPIRED_COMMITLOG: inspect.clean,
    # -- The broker
    Code.GET_BROKER_CONFIG: admin.broker_config,
    Code.UPDATE_BROKER_CONFIG: admin.update_broker_config,
    Code.GET_BROKER_RUNTIME_INFO: admin.broker_runtime,
    # -- What there is one of, or none
    Code.GET_BROKER_HA_STATUS: single_broker.ha_status,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: single_broker.cold_data,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: single_broker.rocksdb_progress,
    Code.UPDATE_NAMESRV_CONFIG: single_broker.update_namesrv_config,
}

# All others are ADMIN.
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
    return Row(handler, ("rocketmq", code.name), f"rocketmq {code.name}", kind, kind in LIMITED, kind in LANES)


TABLE: dict[int, Row] = {code: _row(code, handler) for code, handler in _HANDLERS.items()}
