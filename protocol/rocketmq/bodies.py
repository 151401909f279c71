"""The JSON bodies of requests and answers, named as RocketMQ names them.

`fastjson.read(body, HeartbeatData)` reads one, `fastjson.write(value)` writes it. Unknown fields are ignored, absent
ones have the default that Java gives them, and those without which the request has no object are required. Enums are
their names, as text: what a client invents is kept as it is. Numbers are 64 bits wide, as nothing wider could be
written back.
Source: `org.apache.rocketmq.remoting.protocol.body`, `.heartbeat`, `.route`, `.admin`; `TopicConfig.java`,
`SubscriptionGroupConfig.java`.
"""

from typing import Annotated

import msgspec

from duolog.protocol.rocketmq.header import Int64
from duolog.protocol.rocketmq.json.fastjson import MessageQueue, QueueTable, enum
from duolog.protocol.rocketmq.messages.flags import PERM_READ_WRITE

# Java's enums, in the order of their ordinals; C++ clients write these.
ConsumeType = Annotated[str, enum("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")]
MessageModel = Annotated[str, enum("BROADCASTING", "CLUSTERING", "LITE_SELECTIVE")]
ConsumeFromWhere = Annotated[
    str,
    enum(
        "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP",
    ),
]  # fmt: skip
RequestMode = Annotated[str, enum("PULL", "POP")]
RetryPolicyType = Annotated[str, enum("EXPONENTIAL", "CUSTOMIZED")]
TopicFilterType = Annotated[str, enum("SINGLE_TAG", "MULTI_TAG")]


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all bodies."""


class DataVersion(Body):
    """The version of a table, by which name servers compare it. It must change when the table changes."""

    state_version: Int64 = 0
    timestamp: Int64 = 0
    counter: Int64 = 0


# -- Members of groups


class SubscriptionData(Body):
    """The subscription of a group to a topic. `code_set` has the hashes of `tags_set`.

    Of two subscriptions, the one with the higher `sub_version` is valid.
    """

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[Int64] = []
    sub_version: Int64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ProducerData(Body):
    group_name: str


class ConsumerData(Body):
    """`consume_type` is CONSUME_ACTIVELY (pull), CONSUME_PASSIVELY (push) or CONSUME_POP."""

    group_name: str
    consume_type: ConsumeType = "CONSUME_PASSIVELY"
    message_model: MessageModel = "CLUSTERING"
    consume_from_where: ConsumeFromWhere = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class HeartbeatData(Body):
    """HEART_BEAT: the groups and subscriptions of one client. With `without_sub` it has no subscriptions."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: Int64 = 0
    without_sub: bool = False


class ConsumerList(Body):
    """GET_CONSUMER_LIST_BY_GROUP: each client id once."""

    consumer_id_list: list[str]


class CheckClientRequest(Body):
    """CHECK_CLIENT_CONFIG: asks whether this subscription is valid."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class ConnectionBody(Body):
    """One connection of a client. `language` must be one of `remoting.LANGUAGES`, which Java's tools require."""

    client_id: str
    client_addr: str
    language: str
    version: Int64


class ConsumerConnection(Body):
    """GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[ConnectionBody]
    subscription_table: dict[str, SubscriptionData]
    consume_type: str
    message_model: str
    consume_from_where: str


class ProducerConnection(Body):
    """GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[ConnectionBody]


class LockRequest(Body):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []
    only_this_broker: bool = False


class LockAnswer(Body):
    """LOCK_BATCH_MQ: those of the request's queues that the client now holds."""

    queues: list[MessageQueue] = msgspec.field(name="lockOKMQSet")


class AssignmentRequest(Body):
    """QUERY_ASSIGNMENT."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: MessageModel = "CLUSTERING"


class Assignment(Body):
    """A queue of a client, and whether it pulls or pops. Queue id -1, only for pop, stands for all queues."""

    message_queue: MessageQueue
    mode: str
    attachments: dict[str, str] = {}


class AssignmentAnswer(Body):
    """QUERY_ASSIGNMENT. None: the client does not change its assignment."""

    message_queue_assignments: list[Assignment] | None


class RequestModeRequest(Body):
    """SET_MESSAGE_REQUEST_MODE: PULL, or POP with the number of further clients that share a queue (0 for all)."""

    topic: str
    consumer_group: str
    mode: RequestMode = "PULL"
    pop_share_queue_num: Int64 = 0


class BatchAck(Body):
    """Acks of one pop of one queue: a set of bits, counted from its start offset."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    start_offset: Int64 = msgspec.field(name="so", default=0)
    queue_id: Int64 = msgspec.field(name="q", default=0)
    pop_ms: Int64 = msgspec.field(name="pt", default=0)
    bits: str = msgspec.field(name="b", default="")
    retry: str = msgspec.field(name="r", default="0")


class BatchAckRequest(Body):
    """BATCH_ACK_MESSAGE."""

    acks: list[BatchAck] = []
    broker_name: str = ""


# -- Routes


class QueueData(Body):
    broker_name: str
    read_queue_nums: Int64
    write_queue_nums: Int64
    perm: Int64 = PERM_READ_WRITE
    topic_sys_flag: Int64 = 0


MASTER_ID = 0  # The id of a master; producers send only to masters.


class BrokerData(Body):
    """Addresses by broker id; producers look for id 0."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False


class TopicRouteData(Body):
    """GET_ROUTEINFO_BY_TOPIC."""

    queue_datas: list[QueueData]
    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None


class ClusterInfo(Body):
    """GET_BROKER_CLUSTER_INFO: brokers by name, their names by cluster."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class TopicList(Body):
    """A list of topics."""

    topic_list: list[str]
    broker_addr: str | None = None


class GroupList(Body):
    """QUERY_TOPIC_CONSUME_BY_WHO."""

    group_list: list[str]


class KVTable(Body):
    """GET_BROKER_RUNTIME_INFO, GET_KVLIST_BY_NAMESPACE."""

    table: dict[str, str]


# -- Topics and groups


class TopicConfig(Body):
    topic_name: str
    read_queue_nums: Int64 = 16
    write_queue_nums: Int64 = 16
    perm: Int64 = PERM_READ_WRITE
    topic_filter_type: TopicFilterType = "SINGLE_TAG"
    topic_sys_flag: Int64 = 0
    order: bool = False
    attributes: dict[str, str] = {}


class TopicConfigTable(Body):
    """GET_ALL_TOPIC_CONFIG."""

    topic_config_table: dict[str, TopicConfig]
    data_version: DataVersion


class GroupRetryPolicy(Body):
    """The retry policy of a group: CUSTOMIZED, a list of delays, or EXPONENTIAL; with parameters if not the default."""

    type: RetryPolicyType = "CUSTOMIZED"
    customized_retry_policy: dict[str, list[Int64]] | None = None
    exponential_retry_policy: dict[str, Int64] | None = None


class SubscriptionGroupConfig(Body):
    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int64 = 1
    retry_max_times: Int64 = 16
    group_retry_policy: GroupRetryPolicy = msgspec.field(default_factory=GroupRetryPolicy)
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int64 = 0
    consume_timeout_minute: Int64 = 15
    attributes: dict[str, str] = {}


class SubscriptionGroupTable(Body):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG. Java's tools require `forbidden_table`."""

    subscription_group_table: dict[str, SubscriptionGroupConfig]
    data_version: DataVersion
    forbidden_table: dict[str, dict[str, Int64]] = {}


# -- Offsets


class TopicOffset(Body):
    min_offset: Int64
    max_offset: Int64
    last_update_timestamp: Int64


class TopicStatsTable(Body):
    """GET_TOPIC_STATS_INFO."""

    offset_table: QueueTable[TopicOffset]
    topic_put_tps: float = 0.0


class OffsetWrapper(Body):
    broker_offset: Int64
    consumer_offset: Int64
    pull_offset: Int64
    last_timestamp: Int64


class ConsumeStats(Body):
    """GET_CONSUME_STATS."""

    offset_table: QueueTable[OffsetWrapper]
    consume_tps: float = 0.0


class ResetOffsetBody(Body):
    """INVOKE_BROKER_TO_RESET_OFFSET, RESET_CONSUMER_CLIENT_OFFSET."""

    offset_table: QueueTable[Int64]


class ConsumerStatus(Body):
    """GET_CONSUMER_STATUS_FROM_CLIENT: by queue; INVOKE_BROKER_TO_GET_CONSUMER_STATUS: by client id and queue."""

    message_queue_table: QueueTable[Int64] = msgspec.field(default_factory=lambda: QueueTable({}))
    consumer_table: dict[str, QueueTable[Int64]] = {}


# -- Requests of admin tools


class TopicConfigList(Body):
    """UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[TopicConfig] = []


class GroupConfigList(Body):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig] = []


class ConsumeStatsList(Body):
    """GET_BROKER_CONSUME_STATS: for each group a map with one entry, the group's name and its consume statistics."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]]
    broker_addr: str
    total_diff: Int64
    total_inflight_diff: Int64 = 0


class ProducerState(Body):
    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: Int64
    last_update_timestamp: Int64


class ProducerTable(Body):
    """GET_ALL_PRODUCER_INFO: by group."""

    data: dict[str, list[ProducerState]]


class StatsItem(Body):
    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class StatsData(Body):
    """VIEW_BROKER_STATS_DATA."""

    stats_minute: StatsItem
    stats_hour: StatsItem
    stats_day: StatsItem


class ConsumeQueueRow(Body):
    physic_offset: Int64
    physic_size: Int64
    tags_code: Int64
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = True
    msg: str | None = None


class ConsumeQueueData(Body):
    """QUERY_CONSUME_QUEUE."""

    queue_data: list[ConsumeQueueRow]
    max_queue_index: Int64
    min_queue_index: Int64
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class GroupSubscription(Body):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


class HaStatus(Body):
    """GET_BROKER_HA_STATUS, of a master without slaves."""

    master_commit_log_max_offset: Int64
    master: bool = True
    in_sync_slave_nums: Int64 = 0
    ha_connection_info: list[str] = []


class RocksdbCheck(Body):
    """CHECK_ROCKSDB_CQ_WRITE_PROGRESS: 0 is ok."""

    check_result: str
    check_status: Int64 = 0


# -- Brokers and name servers


class RegisteredTopics(Body):
    """All topics of a broker. There are no static topics, so no mappings."""

    topic_config_table: dict[str, TopicConfig]
    data_version: DataVersion
    mapping_data_version: DataVersion
    topic_queue_mapping_info_map: dict[str, str] = {}
    topic_queue_mapping_detail_map: dict[str, str] = {}


class BrokerRegistration(Body):
    """REGISTER_BROKER."""

    topic_config_serialize_wrapper: RegisteredTopics
    filter_server_list: list[str] = []
