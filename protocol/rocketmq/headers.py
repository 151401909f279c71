"""The header fields of requests and answers: `RemotingCommand.ext`, all text on the wire, as typed values.

Each class is one header of `org.apache.rocketmq.remoting.protocol.header`: a field without a default is mandatory
(`@CFNotNull`), the wire's name is the field's in camel case. Fields that a class does not have are ignored: any request
may carry more (`ns`, `bname`, `AccessKey`, ...).

    PullRequest.parse({"consumerGroup": "g", "topic": "t", "queueId": "0", ...}).queue_id == 0
    OffsetAnswer(offset=7).to_ext() == {"offset": "7"}
"""

from collections.abc import Mapping
from typing import Any, Self, cast

import msgspec

from duolog.protocol.rocketmq.header import Header, Int32, Int64, explain

_convert: Any = msgspec.convert  # A call of `cast` at run time would cost each send as much as a field.

# -- Sending


class SendRequest(Header):
    """SEND_MESSAGE and SEND_REPLY_MESSAGE; `parse` reads either form, whatever the code: clients mix them."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False

    @classmethod
    def parse(cls, ext: Mapping[str, str]) -> Self:
        form = SendRequestV2 if "a" in ext else SendRequest
        try:
            request: Self = _convert(ext, form, strict=False)
            return request
        except msgspec.ValidationError as error:
            raise explain(form, ext, error) from None

    @staticmethod
    def topic_of(ext: Mapping[str, str]) -> str:
        """Return the topic as `parse` finds it, without decoding the other fields; empty if it is missing."""
        return ext.get("b" if "a" in ext else "topic", "")


SendRequestV2: type[SendRequest] = cast(
    type[SendRequest],
    msgspec.defstruct(
        "SendRequestV2",
        [
            (field.name, field.type, msgspec.field(name=letter, default=field.default))
            for field, letter in zip(msgspec.structs.fields(SendRequest), "abcdefghijklm", strict=True)
        ],
        bases=(SendRequest,),
        namespace={"__doc__": "The same fields, in the same order, called a to m: every message carries their names."},
        kw_only=True,
    ),
)


class SendAnswer(Header):
    """The answer to a send that was stored. Clients require the first three fields."""

    msg_id: str  # The offsetMsgId; for a batch one for each message, joined by commas.
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str = msgspec.field(name="MSG_REGION", default="DefaultRegion")
    trace_on: bool = msgspec.field(name="TRACE_ON", default=True)


class SendBackRequest(Header):
    """CONSUMER_SEND_MSG_BACK."""

    offset: Int64  # Position of the message in the commitlog.
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class PushReply(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT, by the broker; the hosts are `ip:port`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    born_host: str
    store_host: str
    store_timestamp: int


class RecallRequest(Header):
    """RECALL_MESSAGE."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


# -- Reading


class PullRequest(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


class PullAnswer(Header):
    """The answer to a pull, with any response code. Java clients require all fields.

    Broker id 0 tells the client to continue with this broker.
    """

    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int = 0
    forbidden_type: int | None = None


class PopRequest(Header):
    """POP_MESSAGE. Queue id -1 stands for all queues. With `init_mode` 1 a group without offsets begins at the end."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopAnswer(Header):
    """The answer to POP_MESSAGE. `messages/receipt.py` describes the infos."""

    pop_time: int
    invisible_time: int
    revive_qid: int
    rest_num: int
    start_offset_info: str
    msg_offset_info: str
    order_count_info: str | None = None


class PeekRequest(Header):
    """PEEK_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class NotificationRequest(Header):
    """NOTIFICATION. A born time of 0 stands for the present time."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None


class PollingInfoRequest(Header):
    """POLLING_INFO."""

    consumer_group: str
    topic: str
    queue_id: Int32


class AckRequest(Header):
    """ACK_MESSAGE; `extra_info` is the message's receipt."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleRequest(AckRequest):
    """CHANGE_MESSAGE_INVISIBLETIME."""

    invisible_time: Int64


class ChangeInvisibleAnswer(Header):
    pop_time: int
    invisible_time: int
    revive_qid: int


class ViewRequest(Header):
    """VIEW_MESSAGE_BY_ID."""

    offset: Int64  # Position of the message in the commitlog.
    topic: str | None = None


class QueryRequest(Header):
    """QUERY_MESSAGE."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    is_unique_key: bool = msgspec.field(name="_UNIQUE_KEY_QUERY", default=False)


class QueryAnswer(Header):
    index_last_update_timestamp: int
    index_last_update_phyoffset: int


# -- Offsets


class QueryConsumerOffsetRequest(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequest(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class QueueRequest(Header):
    """GET_MAX_OFFSET (`committed` is ignored), GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int32


class SearchOffsetRequest(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP. LOWER: the first message at or after `timestamp`; UPPER: the last at or before."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str = "LOWER"


class OffsetAnswer(Header):
    offset: int


class TimestampAnswer(Header):
    timestamp: int


# -- Members of groups


class UnregisterRequest(Header):
    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ResetOffsetRequest(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET: one queue to an offset, or all (-1) or one to a time (negative: to the end)."""

    topic: str
    group: str
    queue_id: Int32 = -1
    timestamp: Int64 = -1
    offset: Int64 | None = None
    is_force: bool = False


class ConsumerStatusRequest(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS; `client_addr` is a client id, empty or none: all."""

    topic: str
    group: str
    client_addr: str | None = None


class ConsumerGroupRequest(Header):
    """GET_CONSUMER_LIST_BY_GROUP, GET_CONSUMER_CONNECTION_LIST; by the broker: NOTIFY_CONSUMER_IDS_CHANGED."""

    consumer_group: str


# -- Transactions


class EndTransactionRequest(Header):
    """END_TRANSACTION. `commit_or_rollback` is a transaction type of `flags`; `msg_id` is the UNIQ_KEY."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionRequest(Header):
    """CHECK_TRANSACTION_STATE, by the broker."""

    topic: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


# -- Topics and groups


class CreateTopicRequest(Header):
    """UPDATE_AND_CREATE_TOPIC. `attributes` is a list `+key=value,-key`."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int32 = 0
    attributes: str | None = None


class TopicRequest(Header):
    """Requests about one topic: for its route, config or statistics, and its deletion in broker and name server."""

    topic: str


class GroupRequest(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str


class ClusterRequest(Header):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class DeleteGroupRequest(Header):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool = False


class GroupTopicRequest(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str


class StatsRequest(Header):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class ConsumeQueueRequest(Header):
    """QUERY_CONSUME_QUEUE; `index` is an offset of the queue."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class ConsumerRequest(Header):
    """GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY: one member of a group."""

    consumer_group: str
    client_id: str
    msg_id: str | None = None


# -- Name server


class BrokerNameRequest(Header):
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class KeyValueRequest(Header):
    """GET_KV_CONFIG, DELETE_KV_CONFIG."""

    namespace: str
    key: str


class PutKeyValueRequest(Header):
    """PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


class NamespaceRequest(Header):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str
