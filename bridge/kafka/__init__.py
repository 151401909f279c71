"""The table of Kafka APIs: the versions that the broker serves, and their handlers. ApiVersions lists this table.

The highest versions stay below those that name topics by id (Produce 13, Fetch 13, OffsetCommit 10) and those that only
brokers send (AddPartitionsToTxn 4). Transactions of version 2 need the feature in ApiVersions, Produce 12, EndTxn 5 and
TxnOffsetCommit 5 together, because a client that found only some of them would lose data (KIP-890). The lowest versions
are those of Kafka 4. Older librdkafka disables features where a single old version is missing, so Produce is advertised
from version 0, though batches of magic 2 begin with version 3.

The last column says what a request needs (`requirements.py`); `requests/connection.py` decides before the handler runs.

The table lacks KIP-848 groups, share groups, telemetry, and the APIs between brokers.
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
from duolog.bridge.kafka import requirements as needs
from duolog.bridge.kafka.cluster import acls, api_versions, client_quotas, quorum, sasl, scram_credentials
from duolog.bridge.kafka.requests.api import KafkaApi
from duolog.bridge.security.rules import Operation
from duolog.protocol.kafka.api_messages import ApiKey

READ, WRITE, DELETE, ALTER = Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER
DESCRIBE, DESCRIBE_CONFIGS, CLUSTER_ACTION = Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.CLUSTER_ACTION
ALTER_CONFIGS = Operation.ALTER_CONFIGS

# fmt: off
TABLE: dict[int, KafkaApi] = {api.key: api for api in (
    KafkaApi(ApiKey.PRODUCE,                      3, 12, produce.produce, needs.PRODUCE, advertised_from=0),
    KafkaApi(ApiKey.FETCH,                        4, 12, fetch.fetch, needs.FETCH),
    KafkaApi(ApiKey.LIST_OFFSETS,                 1, 10, list_offsets.list_offsets, needs.of_topics(DESCRIBE)),
    KafkaApi(ApiKey.METADATA,                     0, 13, metadata.metadata, needs.METADATA),
    KafkaApi(ApiKey.OFFSET_COMMIT,                2,  9, group_offsets.offset_commit, needs.OFFSET_COMMIT),
    KafkaApi(ApiKey.OFFSET_FETCH,                 1,  9, group_offsets.offset_fetch, needs.OFFSET_FETCH),
    KafkaApi(ApiKey.FIND_COORDINATOR,             0,  6, metadata.find_coordinator, needs.FIND_COORDINATOR),
    KafkaApi(ApiKey.JOIN_GROUP,                   0,  9, group_membership.join_group, needs.of_group(READ)),
    KafkaApi(ApiKey.HEARTBEAT,                    0,  4, group_membership.heartbeat, needs.of_group(READ)),
    KafkaApi(ApiKey.LEAVE_GROUP,                  0,  5, group_membership.leave_group, needs.of_group(READ)),
    KafkaApi(ApiKey.SYNC_GROUP,                   0,  5, group_membership.sync_group, needs.of_group(READ)),
    KafkaApi(ApiKey.DESCRIBE_GROUPS,              0,  6, group_membership.describe_groups,
             needs.of_groups(DESCRIBE, "groups")),
    KafkaApi(ApiKey.LIST_GROUPS,                  0,  5, group_membership.list_groups, needs.SEEN),
    KafkaApi(ApiKey.SASL_HANDSHAKE,               0,  1, sasl.sasl_handshake, needs.NOTHING),
    KafkaApi(ApiKey.SASL_AUTHENTICATE,            0,  2, sasl.sasl_authenticate, needs.NOTHING),
    KafkaApi(ApiKey.API_VERSIONS,                 0,  4, api_versions.api_versions, needs.NOTHING),
    KafkaApi(ApiKey.CREATE_TOPICS,                2,  7, topics.create_topics, needs.CREATE_TOPICS),
    KafkaApi(ApiKey.DELETE_TOPICS,                1,  6, topics.delete_topics, needs.DELETE_TOPICS),
    KafkaApi(ApiKey.DELETE_RECORDS,               0,  2, delete_records.delete_records, needs.of_topics(DELETE)),
    KafkaApi(ApiKey.INIT_PRODUCER_ID,             0,  5, transactions.init_producer_id, needs.INIT_PRODUCER_ID),
    KafkaApi(ApiKey.OFFSET_FOR_LEADER_EPOCH,      2,  4, list_offsets.offset_for_leader_epoch,
             needs.of_topics(DESCRIBE, "topics", "topic")),
    KafkaApi(ApiKey.ADD_PARTITIONS_TO_TXN,        0,  3, transactions.add_partitions_to_txn,
             needs.ADD_PARTITIONS_TO_TXN),
    KafkaApi(ApiKey.ADD_OFFSETS_TO_TXN,           0,  4, transactions.add_offsets_to_txn, needs.ADD_OFFSETS_TO_TXN),
    KafkaApi(ApiKey.END_TXN,                      0,  5, transactions.end_txn, needs.of_transactional_id(WRITE)),
    KafkaApi(ApiKey.WRITE_TXN_MARKERS,            1,  1, transactions.write_txn_markers,
             needs.of_cluster(CLUSTER_ACTION)),
    KafkaApi(ApiKey.TXN_OFFSET_COMMIT,            0,  5, transactions.txn_offset_commit, needs.TXN_OFFSET_COMMIT),
    KafkaApi(ApiKey.DESCRIBE_ACLS,                1,  3, acls.describe_acls, needs.of_cluster(DESCRIBE)),
    KafkaApi(ApiKey.CREATE_ACLS,                  1,  3, acls.create_acls, needs.of_cluster(ALTER)),
    KafkaApi(ApiKey.DELETE_ACLS,                  1,  3, acls.delete_acls, needs.of_cluster(ALTER)),
    KafkaApi(ApiKey.DESCRIBE_CONFIGS,             1,  4, configs.describe_configs, needs.DESCRIBE_CONFIGS),
    KafkaApi(ApiKey.ALTER_CONFIGS,                0,  2, configs.alter_configs, needs.ALTER_CONFIGS),
    KafkaApi(ApiKey.DESCRIBE_LOG_DIRS,            1,  4, topics.describe_log_dirs, needs.of_cluster(DESCRIBE)),
    KafkaApi(ApiKey.CREATE_PARTITIONS,            0,  3, topics.create_partitions, needs.of_topics(ALTER)),
    KafkaApi(ApiKey.DELETE_GROUPS,                0,  2, group_membership.delete_groups,
             needs.of_groups(DELETE, "groups_names")),
    KafkaApi(ApiKey.ELECT_LEADERS,                0,  2, topics.elect_leaders, needs.of_cluster(ALTER)),
    KafkaApi(ApiKey.INCREMENTAL_ALTER_CONFIGS,    0,  1, configs.incremental_alter_configs, needs.ALTER_CONFIGS),
    KafkaApi(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0,  0, topics.list_partition_reassignments,
             needs.of_cluster(DESCRIBE)),
    KafkaApi(ApiKey.OFFSET_DELETE,                0,  0, group_offsets.offset_delete, needs.OFFSET_DELETE),
    KafkaApi(ApiKey.DESCRIBE_CLIENT_QUOTAS,       0,  1, client_quotas.describe_client_quotas,
             needs.of_cluster(DESCRIBE_CONFIGS)),
    KafkaApi(ApiKey.ALTER_CLIENT_QUOTAS,          0,  1, client_quotas.alter_client_quotas,
             needs.of_cluster(ALTER_CONFIGS)),
    KafkaApi(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, scram_credentials.describe_user_scram_credentials,
             needs.of_cluster(DESCRIBE)),
    KafkaApi(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0,  0, scram_credentials.alter_user_scram_credentials,
             needs.of_cluster(ALTER)),
    KafkaApi(ApiKey.DESCRIBE_QUORUM,              0,  2, quorum.describe_quorum, needs.of_cluster(DESCRIBE)),
    KafkaApi(ApiKey.DESCRIBE_CLUSTER,             0,  2, metadata.describe_cluster, needs.SEEN),
    KafkaApi(ApiKey.DESCRIBE_PRODUCERS,           0,  0, transactions.describe_producers, needs.of_topics(READ)),
    KafkaApi(ApiKey.DESCRIBE_TRANSACTIONS,        0,  0, transactions.describe_transactions,
             needs.DESCRIBE_TRANSACTIONS),
    KafkaApi(ApiKey.LIST_TRANSACTIONS,            0,  1, transactions.list_transactions, needs.SEEN),
    KafkaApi(ApiKey.LIST_CONFIG_RESOURCES,        0,  1, configs.list_config_resources,
             needs.of_cluster(DESCRIBE_CONFIGS)),
    KafkaApi(ApiKey.DESCRIBE_TOPIC_PARTITIONS,    0,  0, topic_pages.describe_topic_partitions, needs.METADATA),
)}
# fmt: on

ADVERTISED_VERSIONS = tuple((key, *api.advertised) for key, api in TABLE.items())
