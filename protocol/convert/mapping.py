"""The mapping between the records of Kafka and the messages of RocketMQ, and the names that it uses.

    Kafka record                     RocketMQ message
    value                            body; decompressed for Kafka; not compressed for RocketMQ, unless it is empty
    null value                       empty body and property __KAFKA_NULL = true
    key                              property KEYS, the whole text
    key that KEYS cannot hold        property __KAFKA_KEY = base64; for an empty key: =
    no key                           no property KEYS
    header x                         property x with the same text
    header that x cannot hold        property __KAFKA_HEADER_n = name=base64; for a null value: name!
    headers that do not fit          their names in property __KAFKA_OMITTED, separated by commas
    timestamp                        bornTimestamp; without a timestamp, bornTimestamp is the storeTimestamp
    timestamp with LogAppendTime     bornTimestamp has the same time; for Kafka, storeTimestamp if the topic has
                                     LogAppendTime
    partition, offset                queue id, queue offset
    -                                physical offset: the record's address, which is the position of the entry + the
                                     index of the record, at most the last position of the entry
    -                                born host 127.0.0.1:0, store host of the broker
    no header                        properties for clients and brokers: WAIT, CLUSTER, DELAY, ... (STEERING), except
                                     TIMER_OUT_MS, the due time of a delayed message, which becomes a header
    control batch                    no record

A header becomes the property of its name if all of these are true; any other header is escaped as __KAFKA_HEADER_n,
where n is its index among the headers and its name is percent-encoded:

  - the name is not empty, and no earlier header of the record has the same name;
  - the name is neither KEYS nor in STEERING, and does not begin with __KAFKA_;
  - the value is not empty, and name and value are UTF-8 without the bytes 1 and 2.

Properties have the order of the headers, so the conversion back returns the same headers in the same order.

The properties of a message have at most 32,767 bytes. A key and headers that exceed them are omitted, and
__KAFKA_OMITTED has their names (KEYS for the key). The stored batch is not changed, so Kafka consumers receive all
headers.

If the body of a RocketMQ message cannot be decompressed, the Kafka record has the compressed body as its value, and the
header __ROCKETMQ_SYS_FLAG with the sysFlag, which names the codec.

The functions of this package raise ProtocolError for a malformed frame. `rocketmq_records` requires records that
`record_reader.read_records` has decoded.
"""

from typing import Final

from duolog.protocol.rocketmq.messages import properties as names

KAFKA_NULL: Final = "__KAFKA_NULL"
KAFKA_KEY: Final = "__KAFKA_KEY"
KAFKA_HEADER: Final = "__KAFKA_HEADER_"
KAFKA_OMITTED: Final = "__KAFKA_OMITTED"
ROCKETMQ_SYS_FLAG: Final = "__ROCKETMQ_SYS_FLAG"
ESCAPES: Final = "__KAFKA_"

# Properties that clients or brokers interpret or set (MessageConst.java). All other properties are those of the user,
# and so are TAGS, UNIQ_KEY and __SHARDINGKEY here.
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
TRANSIENT: Final = "__RMQ.TRANSIENT."  # Apache RocketMQ does not store properties with this prefix.

NULL_PROPERTY: Final = f"{KAFKA_NULL}\x01true\x02".encode()
NAMES_CACHED_MAX: Final = 4096  # A cache with so many names is cleared.
NAME_CACHED_CHARACTERS_MAX: Final = 64
OMITTED_BYTES_MAX: Final = 1024  # The size of __KAFKA_OMITTED.
EMPTY_KEY: Final = "="
NO_HEADERS: Final = b"\0"
