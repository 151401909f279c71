"""DescribeConfigs 1..4, AlterConfigs 0..2, IncrementalAlterConfigs 0..1, ListConfigResources 0..1.

Topics have the configs of `bridge/state/topic_configs.py`. The broker shows some of its settings under Kafka's names;
only its config file changes them. Other resources (loggers, client metrics, groups) have no configs.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.errors import (
    ANSWERABLE,
    InvalidRequest,
    code_of,
    message_of,
)
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.repeated_names import Repeated
from duolog.bridge.kafka.requests.request import (
    NO_THROTTLE,
    KafkaRequest,
    Steps,
    join_promises,
)
from duolog.bridge.state.topic_configs import (
    TABLE,
    ConfigType,
    InvalidConfig,
    check,
    value_of,
)
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import UnknownTopic
from duolog.protocol.kafka.api_messages import ErrorCode, ResponseTypes
from duolog.protocol.kafka.response import Elements
from duolog.store.entry import Promise

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32  # ConfigResource.java
_LISTED = frozenset((_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP))
_FROM_TOPIC, _FROM_BROKER, _DEFAULT = 1, 4, 5  # DescribeConfigsResponse.java#ConfigSource
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)  # AlterConfigOp.java


class ConfigValue(NamedTuple):
    """A config as DescribeConfigs shows it; `source` is a ConfigSource of Kafka."""

    name: str
    value: str
    source: int


def config_value(name: str, overrides: Mapping[str, str], defaults: Mapping[str, str]) -> ConfigValue:
    """Return the value of a topic's config and its source; `defaults` are those of the broker's settings."""
    value = value_of(name, overrides, defaults)
    if name in overrides:
        return ConfigValue(name, value, _FROM_TOPIC)
    return ConfigValue(name, value, _DEFAULT if value == TABLE[name].default else _FROM_BROKER)


def overrides_of(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Read and check a topic's configs in a request; raises InvalidConfig."""
    overrides = {}
    for name, value in pairs:
        if value is None:
            raise InvalidConfig(f"topic config {name} has no value: null is not allowed")
        overrides[name] = value
    check(overrides)
    return overrides


# -- DescribeConfigs


def describe_configs(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Describe each resource once; where a request repeats one, its last entry counts."""
    asked = {(each.resource_type, each.resource_name): each for each in request.body.resources}
    results = Elements(_describe(context, request, resource) for resource in asked.values())
    entity = request.types.DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=results)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def _describe(context: KafkaContext, request: KafkaRequest, resource: Any) -> Any:
    error, message = ErrorCode.none, None
    configs: tuple[Any, ...] = ()
    try:
        names = frozenset(resource.configuration_keys or ())
        configs = tuple(
            row
            for row in _rows(context, request, resource.resource_type, resource.resource_name)
            if not names or row.name in names
        )
    except ANSWERABLE as refusal:
        error, message = code_of(refusal), message_of(refusal)
    return request.types.DescribeConfigsResult(
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _rows(context: KafkaContext, request: KafkaRequest, resource_type: int, name: str) -> Iterator[Any]:
    if resource_type == _TOPIC:
        topic = _topic(context, name)
        for row in TABLE.values():
            yield _row(
                request, config_value(row.name, topic.configs, context.topics.config_defaults),
                row.type, row.doc, _synonyms(topic, row.name, context.topics.config_defaults),
            )  # fmt: skip
    elif resource_type == _BROKER:
        # Without a name the request asks for dynamic configs of all brokers, of which there are none.
        if name:
            _check_node(context, name)
            for config, type_ in _broker_configs(context):
                yield _row(request, config, type_, "", [config], read_only=True)
    else:
        raise InvalidRequest(f"resources of type {resource_type} have no configs")


def _row(
    request: KafkaRequest,
    config: ConfigValue,
    type_: ConfigType,
    doc: str,
    synonyms: Iterable[ConfigValue],
    *,
    read_only: bool = False,
) -> Any:
    types, body = request.types, request.body
    shown = synonyms if body.include_synonyms else ()
    return types.DescribeConfigsResourceResult(
        name=config.name,
        value=config.value,
        read_only=read_only,
        config_source=config.source,
        is_sensitive=False,
        synonyms=tuple(types.DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in shown),
        config_type=int(type_),
        documentation=doc if getattr(body, "include_documentation", False) else None,
    )


def _synonyms(topic: Topic, name: str, defaults: Mapping[str, str]) -> list[ConfigValue]:
    """List the values that the sources of a config have, the one in force first."""
    chain = [ConfigValue(name, TABLE[name].default, _DEFAULT)]
    if name in defaults:
        chain.insert(0, ConfigValue(name, defaults[name], _FROM_BROKER))
    if name in topic.configs:
        chain.insert(0, ConfigValue(name, topic.configs[name], _FROM_TOPIC))
    return chain


def _broker_configs(context: KafkaContext) -> Iterator[tuple[ConfigValue, ConfigType]]:
    """Describe the settings that have names in Kafka. kafka-python expects `advertised.listeners` from the file."""
    options = context.options
    host, port = context.addresses.kafka
    topics, groups, kafka, retention = options.topics, options.groups, options.kafka, options.retention
    values: dict[str, str | int | bool] = {
        "node.id": context.nodes.own.id,
        "broker.id": context.nodes.own.id,
        "listeners": "PLAINTEXT://{}:{}".format(*context.addresses.listening["kafka"]),
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "log.dirs": options.store.directory,
        "num.partitions": topics.queues,
        "auto.create.topics.enable": context.topics.auto_create,
        "delete.topic.enable": True,
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "message.max.bytes": int(context.topics.config_defaults.get("max.message.bytes", topics.message_bytes_max)),
        "log.retention.ms": retention.ms,
        "log.retention.bytes": retention.bytes,
        "log.segment.bytes": options.store.segment_bytes,
        "log.message.timestamp.type": "CreateTime",
        "compression.type": "producer",
        "group.initial.rebalance.delay.ms": groups.initial_rebalance_delay_ms,
        "group.min.session.timeout.ms": groups.session_timeout_min_ms,
        "group.max.session.timeout.ms": groups.session_timeout_max_ms,
        "group.max.size": groups.members_max,
        "offset.metadata.max.bytes": groups.metadata_bytes_max,
        "offsets.retention.minutes": groups.positions_retention_ms // 60_000,
        "socket.request.max.bytes": kafka.frame_bytes_max,
        "fetch.max.bytes": kafka.fetch_bytes_max,
        "connections.max.idle.ms": kafka.idle_ms,
        "producer.id.expiration.ms": kafka.producer_id_expiration_ms,
        "max.connections": options.limits.connections_max,
    }
    for name, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        yield ConfigValue(name, text, _FROM_BROKER), _TYPES[type(value)]


_TYPES: Final = {bool: ConfigType.BOOLEAN, int: ConfigType.LONG, str: ConfigType.STRING}


def _topic(context: KafkaContext, name: str) -> Topic:
    topic = context.topics.by_kafka_name(name)
    if topic is None:
        raise UnknownTopic(f"topic {name} does not exist")
    return topic


def _check_node(context: KafkaContext, name: str) -> None:
    own = context.nodes.own.id
    if name != str(own):
        raise InvalidRequest(f"broker {name} does not exist; this broker is {own}")


# -- ListConfigResources


def list_config_resources(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """List the resources that have configs. Version 0 asks for client metrics; without types all are listed."""
    wanted = {*request.body.resource_types} or _LISTED if request.version else {_CLIENT_METRICS}
    types = request.types
    is_known = wanted <= _LISTED
    resources = _resources(context, types, wanted) if is_known else ()
    entity = types.ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if is_known else ErrorCode.unsupported_version,
        config_resources=Elements(resources),
    )
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def _resources(context: KafkaContext, types: ResponseTypes, wanted: Collection[int]) -> Iterator[Any]:
    if _BROKER in wanted:
        yield types.ConfigResource(resource_name=str(context.nodes.own.id), resource_type=_BROKER)
    if _TOPIC in wanted:
        for topic in [*context.topics.all()]:
            if topic.is_listed:
                yield types.ConfigResource(resource_name=topic.kafka_name, resource_type=_TOPIC)


# -- AlterConfigs, IncrementalAlterConfigs


def alter_configs(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Replace all overrides of a topic; a config that the request does not name falls back to its default."""

    def replaced(topic: Topic, resource: Any) -> dict[str, str]:
        return overrides_of((config.name, config.value) for config in resource.configs)

    return _alter(context, request, replaced, request.types.AlterConfigsResponse)


def incremental_alter_configs(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Change single configs of a topic."""
    return _alter(context, request, _edited, request.types.IncrementalAlterConfigsResponse)


def _alter(context: KafkaContext, request: KafkaRequest, overrides_for: Any, response: Any) -> Steps:
    asked = {(each.resource_type, each.resource_name): each for each in request.body.resources}
    repeated = Repeated((each.resource_type, each.resource_name) for each in request.body.resources)
    promise: Promise | None = context.barrier()

    def altered(resource: Any) -> Any:
        nonlocal promise
        error, message = ErrorCode.none, None
        try:
            repeated.check((resource.resource_type, resource.resource_name), resource.resource_name)
            topic = _alterable(context, resource)
            overrides = overrides_for(topic, resource)
            if not request.body.validate_only:
                promise = join_promises(promise, context.topics.configure(topic, overrides, context.clock.now_ms()))
        except ANSWERABLE as refusal:
            error, message = code_of(refusal), message_of(refusal)
        return request.types.AlterConfigsResourceResponse(
            error_code=error,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    entity = response(throttle_time=NO_THROTTLE, responses=Elements(map(altered, asked.values())))
    pieces = yield from encode_in_steps(context, request, entity)
    return make_answer(request, pieces, promise)


def _alterable(context: KafkaContext, resource: Any) -> Topic:
    if resource.resource_type == _TOPIC:
        return _topic(context, resource.resource_name)
    raise InvalidRequest(
        "the broker's settings cannot be changed by a request; change its config file"
        if resource.resource_type == _BROKER
        else f"resources of type {resource.resource_type} have no configs"
    )


def _edited(topic: Topic, resource: Any) -> dict[str, str]:
    overrides = dict(topic.configs)
    names = Counter(config.name for config in resource.configs)
    for config in resource.configs:
        name, operation = config.name, config.config_operation
        if names[name] > 1:
            raise InvalidRequest(f"config {name} is changed more than once")
        if operation == _DELETE:
            check({name: TABLE[name].default} if name in TABLE else {name: ""})
            overrides.pop(name, None)
        elif operation == _SET:
            overrides |= overrides_of([(name, config.value)])
        elif operation in (_APPEND, _SUBTRACT):
            overrides[name] = _edited_list(name, overrides, config.value or "", is_append=operation == _APPEND)
        else:
            raise InvalidRequest(f"unknown operation {operation} on config {name}")
    check(overrides)
    return overrides


def _edited_list(name: str, overrides: Mapping[str, str], value: str, *, is_append: bool) -> str:
    if name not in TABLE or TABLE[name].type is not ConfigType.LIST:
        raise InvalidConfig(
            f"topic config {name} is not a list, so nothing can be appended to it or subtracted from it"
        )
    current = [part for part in overrides.get(name, TABLE[name].default).split(",") if part]
    named = [part.strip() for part in value.split(",")]
    if is_append:
        return ",".join([*current, *(part for part in named if part not in current)])
    return ",".join(part for part in current if part not in named)
