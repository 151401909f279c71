"""The retry topic and the dead-letter topic of a group, which are created when they are first needed."""

from collections.abc import Collection, Iterable

from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import UnknownTopic
from duolog.protocol.names import kafka_name
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.messages import flags
from duolog.protocol.rocketmq.names import DLQ_PREFIX, RETRY_PREFIX, dead_letter_topic, retry_topic


def group_config(context: RocketMQContext, group: str) -> SubscriptionGroupConfig:
    """Return the group's config, or its default. Raises RequestRefused if the name of the group is invalid."""
    config = context.groups.configs.find(group)
    if config is None:
        remark = f"subscription group not exist, {group[:200]}"
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    return config


def retries_of(context: RocketMQContext, config: SubscriptionGroupConfig, origins: Iterable[str]) -> Topic:
    """Return the group's retry topic for messages of `origins_of`, and create it if necessary.

    Raises RequestRefused, TopicError, StoreError.
    """
    return _writable(context, config, retry_topic(config.group_name), config.retry_queue_nums, origins)


def dead_letters_of(context: RocketMQContext, config: SubscriptionGroupConfig, origins: Iterable[str]) -> Topic:
    """Return the group's dead-letter topic, and create it if necessary. Arguments and errors are as of `retries_of`."""
    return _writable(context, config, dead_letter_topic(config.group_name), 1, origins)


def origins_of(context: RocketMQContext, name: str) -> Collection[str]:
    """Return the topics, in Kafka's spelling, from which the messages in a topic came; RETRY_TOPIC may be forged.

    A retry topic of POP names its topic itself. The name is in RocketMQ's spelling.
    """
    if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return (kafka_name(name),)
    _, plus, origin = name.partition("+")
    if plus:
        return (kafka_name(origin),)
    topic = context.topics.by_rocketmq_name(name)
    return () if topic is None else topic.origins


def _writable(
    context: RocketMQContext, config: SubscriptionGroupConfig, name: str, queue_count: int, origins: Iterable[str]
) -> Topic:
    topic = context.topics.by_rocketmq_name(name)
    if topic is None:
        # The group that owns the topic must exist.
        context.groups.configs.ensure(config.group_name, context.clock.now_ms())
        topic = context.topics.auto_create_for_rocketmq(name, "", queue_count, context.clock.now_ms())
    if topic is None:
        raise UnknownTopic(f"topic[{name}] not exist")
    if not topic.perm & flags.PERM_WRITE:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
    context.topics.add_origins(topic, origins, context.clock.now_ms())
    return topic
