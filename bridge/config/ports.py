"""Settings of the ports and their connections: addresses, TLS, Kafka, RocketMQ, HTTP, hooks, limits."""

from typing import Annotated, Literal

from duolog.bridge.config.section import DAY_MS, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS, Section, setting

_PORT = {"ge": 0, "le": 65535}


class ServerOptions(Section, frozen=True):
    """The addresses on which the broker listens, and the address that clients get."""

    host: Annotated[str, setting("address that all ports listen on", kafka="listeners", rocketmq="bindAddress")] = (
        "127.0.0.1"
    )
    advertise: Annotated[
        str,
        setting(
            "host name that clients connect to; empty: `server.host`, or this machine's name if that is a wildcard",
            kafka="advertised.listeners",
            rocketmq="brokerIP1",
        ),
    ] = ""
    stop_ms: Annotated[
        int, setting("time given to unfinished requests, then to a last checkpoint, when stopping", ge=0, le=4_000)
    ] = 3_000


class TlsOptions(Section, frozen=True):
    """Encryption of all ports, and of the broker's own connections to other servers."""

    mode: Annotated[
        Literal["off", "optional", "required"],
        setting(
            "`optional` serves clients with and without TLS on the same ports, `required` closes connections without",
            kafka="listener.security.protocol.map",
            rocketmq="tls.server.mode",
        ),
    ] = "off"
    certificate_file: Annotated[
        str,
        setting(
            "PEM file of the broker's certificate, followed by those of intermediate CAs",
            kafka="ssl.keystore.location",
            rocketmq="tls.server.certPath",
        ),
    ] = ""
    key_file: Annotated[
        str,
        setting(
            "PEM file of the certificate's private key; empty: it is in `tls.certificate_file`",
            kafka="ssl.keystore.key",
            rocketmq="tls.server.keyPath",
        ),
    ] = ""
    key_password: Annotated[
        str,
        setting(
            "password of an encrypted private key",
            kafka="ssl.key.password",
            rocketmq="tls.server.keyPassword",
            is_secret=True,
        ),
    ] = ""
    ca_file: Annotated[
        str,
        setting(
            "PEM file of the CAs that sign client certificates",
            kafka="ssl.truststore.location",
            rocketmq="tls.server.trustCertPath",
        ),
    ] = ""
    client_auth: Annotated[
        Literal["none", "request", "require"],
        setting(
            "client certificates: `request` checks one if the client has it, `require` refuses clients without",
            kafka="ssl.client.auth",
            rocketmq="tls.server.need.client.auth",
        ),
    ] = "none"
    principal_rule: Annotated[
        str,
        setting(
            "the user of a client certificate, the first rule that matches: `CN`, `DN` (the whole subject), or "
            "`RULE:pattern/replacement/` with `L` or `U`, as in Kafka; separated by commas",
            kafka="ssl.principal.mapping.rules",
        ),
    ] = "CN"
    min_version: Annotated[
        Literal["1.2", "1.3"], setting("oldest version of TLS that is accepted", kafka="ssl.enabled.protocols")
    ] = "1.2"
    ciphers: Annotated[
        str,
        setting(
            "ciphers of TLS 1.2 in OpenSSL's notation; those of TLS 1.3 are OpenSSL's",
            kafka="ssl.cipher.suites",
            rocketmq="tls.ciphers",
        ),
    ] = "ECDHE+AESGCM:ECDHE+CHACHA20"
    handshake_ms: Annotated[
        int, setting("time in which a client must complete its TLS handshake; else its connection is closed", ge=1)
    ] = 10 * SECOND_MS
    handshake_bytes_max: Annotated[
        int, setting("bytes of a client's TLS handshake; beyond, its connection is closed", ge=4 * KIB)
    ] = 64 * KIB
    handshakes_max: Annotated[
        int,
        setting("unfinished TLS handshakes; beyond, the one whose client is silent for longest is closed", ge=1),
    ] = 1_000
    outgoing_ca_file: Annotated[
        str,
        setting(
            "PEM file of the CAs that sign the certificates of servers that the broker calls: check-back URLs, name "
            "servers, token keys, the owner of a shared log; empty: those of the system",
            rocketmq="tls.client.trustCertPath",
        ),
    ] = ""
    outgoing_hostname_check: Annotated[
        bool,
        setting(
            "the certificate of a server that the broker calls must name the server's host",
            kafka="ssl.endpoint.identification.algorithm",
        ),
    ] = True


class KafkaOptions(Section, frozen=True):
    """The Kafka port."""

    port: Annotated[int, setting("port; 0: any free one", kafka="listeners", **_PORT)] = 9092
    frame_bytes_max: Annotated[int, setting("largest request", kafka="socket.request.max.bytes", ge=1 * KIB)] = (
        100 * MIB
    )
    request_bytes_max: Annotated[
        int, setting("largest request other than Produce; a connection that sends a larger one is closed", ge=1 * KIB)
    ] = 8 * MIB
    elements_max: Annotated[
        int,
        setting(
            "topics, partitions, groups and other array elements in one request; a "
            "connection that sends more is closed",
            ge=100,
        ),
    ] = 20_000
    answer_bytes_max: Annotated[
        int,
        setting("largest answer other than Fetch's; a connection that asks for a larger one is closed", ge=64 * KIB),
    ] = 32 * MIB
    # Kafka's default is 55 MiB. An answer below `allocator.KEPT_BYTES_MAX` is read into memory that was used before;
    # for larger ones, the system clears new pages, which takes a third of the CPU time of readers of old records.
    fetch_bytes_max: Annotated[
        int,
        setting(
            "largest fetch answer; consumers far away may read faster with a larger one",
            kafka="fetch.max.bytes",
            ge=1 * KIB,
        ),
    ] = 4 * MIB
    unanswered_max: Annotated[
        int,
        setting(
            "requests of one connection in work; beyond, the connection is not read from until some are answered", ge=1
        ),
    ] = 100
    idle_ms: Annotated[
        int, setting("time without traffic after which a connection is closed", kafka="connections.max.idle.ms", ge=1)
    ] = 10 * MINUTE_MS
    producer_id_expiration_ms: Annotated[
        int,
        setting(
            "time without a batch after which an idempotent producer is forgotten",
            kafka="producer.id.expiration.ms",
            ge=1,
        ),
    ] = DAY_MS
    producers_max: Annotated[int, setting("idempotent producers remembered, summed over queues", ge=1)] = 200_000


class RocketmqOptions(Section, frozen=True):
    """The RocketMQ broker's port and the embedded name server.

    The class has more than 15 fields because each is a setting of the section `rocketmq`.
    """

    port: Annotated[int, setting("the broker's port; 0: any free one", rocketmq="listenPort", **_PORT)] = 10911
    namesrv_port: Annotated[int, setting("the name server's port; 0: any free one", **_PORT)] = 9876
    cluster: Annotated[str, setting("cluster name that clients see", rocketmq="brokerClusterName")] = "DefaultCluster"
    broker: Annotated[str, setting("broker name that clients see", rocketmq="brokerName")] = "duolog"
    join_namesrv: Annotated[
        str,
        setting("name servers of a cluster to register with, `host:port;host:port`", rocketmq="namesrvAddr"),
    ] = ""
    join_namesrv_tls: Annotated[
        bool, setting("use TLS for the connections to these name servers, and verify their certificates")
    ] = False
    standby_routes: Annotated[
        bool,
        setting(
            "with a shared log, routes also name standbys, which send messages on to the owner: producers then go on "
            "at once after a takeover, instead of at their next request for routes"
        ),
    ] = True
    frame_bytes_max: Annotated[
        int, setting("largest request", rocketmq="com.rocketmq.remoting.frameMaxLength", ge=1 * KIB)
    ] = 16 * MIB
    body_bytes_max: Annotated[int, setting("largest message body", rocketmq="maxMessageSize", ge=1)] = 4 * MIB
    unanswered_max: Annotated[
        int,
        setting(
            "requests of one connection in work, waiting pulls included; further ones are answered `system busy`",
            ge=1,
        ),
    ] = 20_000
    sends_max: Annotated[
        int,
        setting(
            "sends waiting for the log; further ones are answered `system busy`",
            rocketmq="sendThreadPoolQueueCapacity",
            ge=1,
        ),
    ] = 10_000
    transactions_max: Annotated[
        int,
        setting(
            "ends of transactions waiting for the log; further ones are answered `system busy`",
            rocketmq="endTransactionPoolQueueCapacity",
            ge=1,
        ),
    ] = 10_000
    acks_max: Annotated[
        int,
        setting(
            "acks and committed offsets waiting for the log; further ones are answered `system busy`",
            rocketmq="ackThreadPoolQueueCapacity",
            ge=1,
        ),
    ] = 10_000
    pulls_max: Annotated[
        int,
        setting(
            "pulls and pops waiting for the disk; further ones are answered `system busy`",
            rocketmq="pullThreadPoolQueueCapacity",
            ge=1,
        ),
    ] = 512
    popped_bytes_max: Annotated[
        int, setting("memory for pop checkpoints; beyond, nothing is popped (`POLLING_FULL`)", ge=1 * KIB)
    ] = 128 * MIB
    retry_topic_v2: Annotated[
        bool,
        setting(
            "name POP's new retry topics `%RETRY%group+topic`, which is unambiguous, instead of `%RETRY%group_topic`",
            rocketmq="enableRetryTopicV2",
        ),
    ] = False
    queries_max: Annotated[
        int,
        setting(
            "queries by key and by id in work, and requests of each other kind that wait "
            "for the disk; further ones are answered `system busy`",
            rocketmq="queryThreadPoolQueueCapacity",
            ge=1,
        ),
    ] = 128
    clients_max: Annotated[
        int,
        setting(
            "heartbeats, locks and route look-ups in work; further ones are answered `system busy`",
            rocketmq="heartbeatThreadPoolQueueCapacity",
            ge=1,
        ),
    ] = 10_000
    admin_max: Annotated[
        int,
        setting(
            "all other requests in work; further ones are answered `system busy`",
            rocketmq="adminBrokerThreadPoolQueueCapacity",
            ge=1,
        ),
    ] = 10_000
    wait_ms: Annotated[
        int,
        setting(
            "longest wait of a request of the kinds of `rocketmq.clients_max` and "
            "`rocketmq.admin_max`; then it is answered `broker busy`",
            rocketmq="waitTimeMillsInAdminBrokerQueue",
            ge=1,
        ),
    ] = 5 * SECOND_MS
    busy_ms: Annotated[
        int,
        setting(
            "time without a write or fsync that succeeds after which sends are answered `broker busy`",
            rocketmq="osPageCacheBusyTimeOutMills",
            ge=1,
        ),
    ] = 5 * SECOND_MS
    unsynced_bytes_max: Annotated[
        int, setting("bytes of the log not on disk yet; beyond, sends are answered `system busy`", ge=MIB)
    ] = 512 * MIB
    idle_ms: Annotated[
        int,
        setting(
            "time without traffic after which a connection is closed", rocketmq="serverChannelMaxIdleTimeSeconds", ge=1
        ),
    ] = 120 * SECOND_MS
    groups_max: Annotated[int, setting("producer and consumer groups with live members", ge=1)] = 20_000
    client_groups_max: Annotated[int, setting("producer and consumer groups of one client", ge=1)] = 500
    subscriptions_max: Annotated[int, setting("topics that one group may subscribe to", ge=1)] = 2_000
    group_config_bytes_max: Annotated[int, setting("configs of all groups; further ones are refused", ge=KIB)] = (
        64 * MIB
    )
    subscribed_bytes_max: Annotated[
        int, setting("memory for the subscriptions of all clients, some 0.5 KiB for each topic and group", ge=KIB)
    ] = 64 * MIB
    client_subscribed_bytes_max: Annotated[int, setting("memory for the subscriptions of one client", ge=KIB)] = 4 * MIB
    refuse_other_subscriptions: Annotated[
        bool,
        setting(
            "refuse a member that subscribes to other messages than its group's members, instead of letting the newest"
            " subscription count for all; a group's attribute `refuse.other.subscriptions` goes first"
        ),
    ] = False


class HttpOptions(Section, frozen=True):
    """The HTTP port: metrics, health, the API behind the admin commands."""

    port: Annotated[int, setting("port; 0: any free one", **_PORT)] = 9644
    hosts: Annotated[
        str,
        setting(
            "host names, besides the broker's own, by which clients may address the port, "
            "separated by blanks; requests to other names are refused, because a web page "
            "may use them (DNS rebinding)"
        ),
    ] = ""
    origins: Annotated[
        str, setting("origins of web pages that may change something, like `https://ops.example`, separated by blanks")
    ] = ""
    masks: Annotated[
        str,
        setting(
            "what the console hides of messages: `payments:card,cvv hr.*:*` hides these fields of JSON bodies and "
            "these headers, and all of the topics `hr.*`; the API gives messages as they are"
        ),
    ] = ""
    schemas_directory: Annotated[
        str,
        setting("directory of schemas by which the console shows bodies: TOPIC.avsc (Avro), TOPIC.desc (Protobuf)"),
    ] = ""
    connections_max: Annotated[int, setting("open connections; further ones are closed at once", ge=1)] = 256
    body_bytes_max: Annotated[int, setting("largest request body", ge=1 * KIB)] = MIB
    held_bytes_max: Annotated[
        int,
        setting(
            "bytes of requests and answers in memory over all connections; beyond, requests get status 503", ge=MIB
        ),
    ] = 128 * MIB
    readers_file: Annotated[
        str,
        setting(
            "TOML file of tokens and the topics that each may read from the log's "
            "files; empty: everybody may read all topics"
        ),
    ] = ""
    request_keys_max: Annotated[
        int, setting("values of `Idempotency-Key` remembered; beyond, requests with new ones get status 503", ge=1)
    ] = 100_000
    request_key_ms: Annotated[int, setting("how long an `Idempotency-Key` is remembered", ge=1)] = HOUR_MS


class HooksOptions(Section, frozen=True):
    """Python code of the operator's that is called around RocketMQ requests; see Hooks."""

    enabled: Annotated[bool, setting("use the hooks that installed packages offer")] = True
    timeout_ms: Annotated[
        int, setting("longest time that a request waits for its hooks; then it continues without them", ge=1)
    ] = 100
    threads: Annotated[int, setting("threads that hooks run in", ge=1, le=64)] = 2
    waiting_max: Annotated[int, setting("calls of hooks waiting at a time; further ones are skipped", ge=1)] = 1_000


class LimitsOptions(Section, frozen=True):
    """What clients may cost together."""

    connections_max: Annotated[
        int, setting("open connections; further ones are closed at once", kafka="max.connections", ge=1, le=1_000_000)
    ] = 16_000
    first_request_ms: Annotated[
        int, setting("time in which a connection must send its first whole request; else it is closed", ge=1)
    ] = 30 * SECOND_MS
    request_bytes_max: Annotated[
        int,
        setting(
            "bytes of unfinished requests over all connections; beyond, the connection with the largest one is closed",
            kafka="queued.max.request.bytes",
            ge=MIB,
        ),
    ] = 256 * MIB
    before_login_bytes_max: Annotated[
        int,
        setting(
            "bytes of unfinished requests over all connections whose clients must log in and have not; beyond, the "
            "oldest of them is closed",
            ge=MIB,
        ),
    ] = 32 * MIB
    unsent_bytes_max: Annotated[
        int,
        setting(
            "bytes of unsent answers of one connection; beyond, it is not read from until its client has taken them",
            ge=1 * KIB,
        ),
    ] = MIB
    unread_ms: Annotated[
        int, setting("time in which a client takes nothing of its unsent answers; then its connection is closed", ge=1)
    ] = 30 * SECOND_MS
    answer_bytes_max: Annotated[
        int,
        setting(
            "bytes of unsent answers over all connections; beyond, reads return one batch, "
            "and connections with unsent answers are not read from",
            ge=MIB,
        ),
    ] = 128 * MIB
    held_bytes_max: Annotated[
        int,
        setting(
            "memory of long polls, 1 KiB for each and 512 bytes for each queue that it waits for; further ones are "
            "answered at once",
            ge=512,
        ),
    ] = 256 * MIB
    connection_held_bytes_max: Annotated[
        int, setting("memory of long polls of one connection; further ones are answered at once", ge=512)
    ] = 32 * MIB
