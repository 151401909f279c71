"""One stored form read as the other: RocketMQ records as a Kafka batch, a Kafka batch as RocketMQ records.

    Kafka record                     RocketMQ message
    value                            body; inflated for Kafka, never compressed for RocketMQ unless it is empty
    value null                       empty body and property __KAFKA_NULL = true
    key                              property KEYS, the whole text
    key that KEYS cannot hold        property __KAFKA_KEY = base64; of an empty key: =
    no key                           no KEYS
    header x                         property x with the same text
    header that x cannot hold        property __KAFKA_HEADER_n = name=base64, of a null value: name!
    headers left out                 named in property __KAFKA_OMITTED, separated by commas
    timestamp; none                  bornTimestamp; storeTimestamp
    LogAppendTime                    bornTimestamp = that time; and back: storeTimestamp, if the topic says so
    partition, offset                queue id, queue offset
    -                                physical offset: entry's position + offset in its batch (message ids), at most
                                     the entry's last position: more records than bytes share it
    -                                hosts: 127.0.0.1:0 was the sender, the broker stored it
    no header                        what steers clients and brokers: WAIT, CLUSTER, DELAY, ... (STEERING); but
                                     TIMER_OUT_MS, when a delayed message was due, is shown
    control batch                    nothing; its offsets pass

The one rule of escapes: a header becomes the property of its name if the name is not empty, occurs for the first time,
is neither KEYS nor one of STEERING nor begins with __KAFKA_, and name and value are text without the bytes 1 and 2,
the value not empty. Every other header becomes __KAFKA_HEADER_n, n being its place among the headers, and its name is
written as in a URL (%XX). Properties stand in the order of the headers, so the way back gives the same headers in the
same order.
    A message's properties have 32,767 bytes. Headers that do not fit, and a key, are left out, and __KAFKA_OMITTED
names them (KEYS: the key); the stored batch stays whole, Kafka's readers see all.

On the way to Kafka nothing is lost either. A body that does not inflate is the value as it lies there, and the header
__ROCKETMQ_SYS_FLAG has the flags that say how it is compressed.

Nothing in this folder knows where frames lie. Its functions raise ProtocolError for a frame that is none; what
`rocketmq_records` gets are records that `record_reader.read_records` has read.
"""

from typing import Final

from duolog.protocol.rocketmq.messages import properties as names

KAFKA_NULL: Final = "__KAFKA_NULL"
KAFKA_KEY: Final = "__KAFKA_KEY"
KAFKA_HEADER: Final = "__KAFKA_HEADER_"
KAFKA_OMITTED: Final = "__KAFKA_OMITTED"
ROCKETMQ_SYS_FLAG: Final = "__ROCKETMQ_SYS_FLAG"
ESCAPES: Final = "__KAFKA_"

# Properties that clients or brokers act upon or write themselves: MessageConst.java. Those not here are the user's,
# TAGS, UNIQ_KEY and __SHARDINGKEY among them.
# fmt: off
STEERING: Final = frozenset((
    "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON", "INSTANCE_ID", "TRACE_CONTEXT", "CONSUME_START_TIME",
    "BORN_TIMESTAMP", "__BORNHOST", "__CRC32#",
    "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY",
    "TIMER_DELAY_LEVEL",
    "TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "REAL_TOPIC", "REAL_QID",
    "TRAN_MSG", "PGROUP", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET",
    "__transactionId__",
    "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "POP_CK", "POP_CK_OFFSET",
    "1ST_POP_TIME",
    "MIN_OFFSET", "MAX_OFFSET", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
    "PROPERTY_FORWARD_QUEUE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "REDIRECT", "DUP_INFO",
    "EXTEND_UNIQ_INFO",
))
# fmt: on
HIDDEN: Final = STEERING - {names.TIMER_OUT_MS}
TRANSIENT: Final = "__RMQ.TRANSIENT."  # never stored by a RocketMQ broker

NULL_PROPERTY: Final = f"{KAFKA_NULL}\x01true\x02".encode()
NAMES_CACHED_MAX: Final = 4096  # each way; then the cache starts anew
NAME_CACHED_CHARACTERS_MAX: Final = 64
OMITTED_BYTES_MAX: Final = 1024  # of the names of what was left out
EMPTY_KEY: Final = "="
NO_HEADERS: Final = b"\0"
