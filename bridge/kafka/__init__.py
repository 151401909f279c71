"""The table of Kafka APIs: the versions that the broker serves, and their handlers. ApiVersions lists this table.

The highest versions stay below those that name topics by id (Produce 13, Fetch 13, OffsetCommit 10) and those that only
brokers send (AddPartitionsToTxn 4). Transactions of version 2 need the feature in ApiVersions, Produce 12, EndTxn 5 and
TxnOffsetCommit 5 together, because a client that found only some of them would lose data (KIP-890). The lowest versions
are those of Kafka 4. Older librdkafka disables features where a single old version is missing, so Produce is advertised
from version 0, though batches of magic 2 begin with version 3.

The table lacks KIP-848 groups, share groups, SASL authentication, telemetry, and the APIs between brokers.
"""

from duolog.bridge.kafka import (
    configs,
    delete_records,
    fetch,
    group_membership,
    group_offsets,
    list_offsets,
    metadata,
    produce,
    topic_pages,
    topics,
    transactions,
)
from duolog.bridge.kafka.cluster import acls_and_quotas, api_versions, quorum
from duolog.bridge.kafka.requests.api import KafkaApi
from duolog.protocol.kafka.api_messages import ApiKey

# fmt: off
TABLE: dict[int, KafkaApi] = {api.key: api for api in (
    KafkaApi(ApiKey.PRODUCE,                      3, 12, produce.produce, advertised_from=0),
    KafkaApi(ApiKey.FETCH,                        4, 12, fetch.fetch),
    KafkaApi(ApiKey.LIST_OFFSETS,                 1, 10, list_offsets.list_offsets),
    KafkaApi(ApiKey.METADATA,                     0, 13, metadata.metadata),
    KafkaApi(ApiKey.OFFSET_COMMIT,                2,  9, group_offsets.offset_commit),
    KafkaApi(ApiKey.OFFSET_FETCH,                 1,  9, group_offsets.offset_fetch),
    KafkaApi(ApiKey.FIND_COORDINATOR,             0,  6, metadata.find_coordinator),
    KafkaApi(ApiKey.JOIN_GROUP,                   0,  9, group_membership.join_group),
    KafkaApi(ApiKey.HEARTBEAT,                    0,  4, group_membership.heartbeat),
    KafkaApi(ApiKey.LEAVE_GROUP,                  0,  5, group_membership.leave_group),
    KafkaApi(ApiKey.SYNC_GROUP,                   0,  5, group_membership.sync_group),
    KafkaApi(ApiKey.DESCRIBE_GROUPS,              0,  6, group_membership.describe_groups),
    KafkaApi(ApiKey.LIST_GROUPS,                  0,  5, group_membership.list_groups),
    KafkaApi(ApiKey.SASL_HANDSHAKE,               0,  1, api_versions.sasl_handshake),
    KafkaApi(ApiKey.API_VERSIONS,                 0,  4, api_versions.api_versions),
    KafkaApi(ApiKey.CREATE_TOPICS,                2,  7, topics.create_topics),
    KafkaApi(ApiKey.DELETE_TOPICS,                1,  6, topics.delete_topics),
    KafkaApi(ApiKey.DELETE_RECORDS,               0,  2, delete_records.delete_records),
    KafkaApi(ApiKey.INIT_PRODUCER_ID,             0,  5, transactions.init_producer_id),
    KafkaApi(ApiKey.OFFSET_FOR_LEADER_EPOCH,      2,  4, list_offsets.offset_for_leader_epoch),
    KafkaApi(ApiKey.ADD_PARTITIONS_TO_TXN,        0,  3, transactions.add_partitions_to_txn),
    KafkaApi(ApiKey.ADD_OFFSETS_TO_TXN,           0,  4, transactions.add_offsets_to_txn),
    KafkaApi(ApiKey.END_TXN,                      0,  5, transactions.end_txn),
    KafkaApi(ApiKey.WRITE_TXN_MARKERS,            1,  1, transactions.write_txn_markers),
    KafkaApi(ApiKey.TXN_OFFSET_COMMIT,            0,  5, transactions.txn_offset_commit),
    KafkaApi(ApiKey.DESCRIBE_ACLS,                1,  3, acls_and_quotas.describe_acls),
    KafkaApi(ApiKey.CREATE_ACLS,                  1,  3, acls_and_quotas.create_acls),
    KafkaApi(ApiKey.DELETE_ACLS,                  1,  3, acls_and_quotas.delete_acls),
    KafkaApi(ApiKey.DESCRIBE_CONFIGS,             1,  4, configs.describe_configs),
    KafkaApi(ApiKey.ALTER_CONFIGS,                0,  2, configs.alter_configs),
    KafkaApi(ApiKey.DESCRIBE_LOG_DIRS,            1,  4, topics.describe_log_dirs),
    KafkaApi(ApiKey.CREATE_PARTITIONS,            0,  3, topics.create_partitions),
    KafkaApi(ApiKey.DELETE_GROUPS,                0,  2, group_membership.delete_groups),
    KafkaApi(ApiKey.ELECT_LEADERS,                0,  2, topics.elect_leaders),
    KafkaApi(ApiKey.INCREMENTAL_ALTER_CONFIGS,    0,  1, configs.incremental_alter_configs),
    KafkaApi(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0,  0, topics.list_partition_reassignments),
    KafkaApi(ApiKey.OFFSET_DELETE,                0,  0, group_offsets.offset_delete),
    KafkaApi(ApiKey.DESCRIBE_CLIENT_QUOTAS,       0,  1, acls_and_quotas.describe_client_quotas),
    KafkaApi(ApiKey.DESCRIBE_QUORUM,              0,  2, quorum.describe_quorum),
    KafkaApi(ApiKey.DESCRIBE_CLUSTER,             0,  2, metadata.describe_cluster),
    KafkaApi(ApiKey.DESCRIBE_PRODUCERS,           0,  0, transactions.describe_producers),
    KafkaApi(ApiKey.DESCRIBE_TRANSACTIONS,        0,  0, transactions.describe_transactions),
    KafkaApi(ApiKey.LIST_TRANSACTIONS,            0,  1, transactions.list_transactions),
    KafkaApi(ApiKey.LIST_CONFIG_RESOURCES,        0,  1, configs.list_config_resources),
    KafkaApi(ApiKey.DESCRIBE_TOPIC_PARTITIONS,    0,  0, topic_pages.describe_topic_partitions),
)}
# fmt: on

ADVERTISED_VERSIONS = tuple((key, *api.advertised) for key, api in TABLE.items())
