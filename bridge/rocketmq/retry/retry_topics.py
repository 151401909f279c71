"""The retry topics and the dead-letter topic of a group, which are created when they are first needed."""

from collections.abc import Collection, Iterable

from duolog.bridge.clock import Clock
from duolog.bridge.net.purgatory import Purgatory
from duolog.bridge.rocketmq.consuming.group_configs import GroupConfigs
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics, UnknownTopic
from duolog.protocol.names import kafka_name
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.messages import flags
from duolog.protocol.rocketmq.messages.receipt import RETRIED, RETRIED_V2, real_topic
from duolog.protocol.rocketmq.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    dead_letter_topic,
    retry_topic,
)


class RetryTopics:
    """Finds the topics for the failed messages of groups. `names_v2` is `rocketmq.retry_topic_v2`."""

    def __init__(
        self, configs: GroupConfigs, topics: Topics, purgatory: Purgatory, clock: Clock, *, names_v2: bool
    ) -> None:
        self._configs, self._topics, self._purgatory, self._clock = configs, topics, purgatory, clock
        self._flag = RETRIED_V2 if names_v2 else RETRIED

    def group_config(self, group: str) -> SubscriptionGroupConfig:
        """Return the group's config, or its default. Raises RequestRefused if the name of the group is invalid."""
        config = self._configs.find(group)
        if config is None:
            remark = f"subscription group not exist, {group[:200]}"
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return config

    def retries_of(self, config: SubscriptionGroupConfig, origins: Iterable[str]) -> Topic:
        """Return the group's retry topic for messages of `origins_of`, and create it if necessary.

        Raises RequestRefused, TopicError, StoreError.
        """
        return self._writable(config, retry_topic(config.group_name), config.retry_queue_nums, origins)

    def dead_letters_of(self, config: SubscriptionGroupConfig, origins: Iterable[str]) -> Topic:
        """Return the group's dead-letter topic, and create it if necessary.

        Arguments and errors are as of `retries_of`.
        """
        return self._writable(config, dead_letter_topic(config.group_name), 1, origins)

    def popped_retries_of(self, group: str, topic: Topic, origins: Iterable[str]) -> Topic:
        """Return the topic for retries of messages that the group has popped from `topic`; create it if necessary."""
        name = real_topic(group, topic.rocketmq_name, self._flag)
        found = self._topics.by_rocketmq_name(name)
        if found is None:
            found = self._topics.auto_create_for_rocketmq(name, "", 1, self._clock.now_ms())
            if found is None:
                raise UnknownTopic(f"topic[{name}] not exist")
            # Held pops try again, and then watch the retry topic.
            self._purgatory.check(queue.key for queue in topic.queues)
        if "+" not in name:  # Otherwise the name says where the messages came from.
            self._topics.add_origins(found, origins, self._clock.now_ms())
        return found

    def origins_of(self, name: str) -> Collection[str]:
        """Return the topics, in Kafka's spelling, from which the messages in a topic came; RETRY_TOPIC may be forged.

        A retry topic of POP names its topic itself. The name is in RocketMQ's spelling.
        """
        if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return (kafka_name(name),)
        _, plus, origin = name.partition("+")
        if plus:
            return (kafka_name(origin),)
        topic = self._topics.by_rocketmq_name(name)
        return () if topic is None else topic.origins

    def _writable(self, config: SubscriptionGroupConfig, name: str, queue_count: int, origins: Iterable[str]) -> Topic:
        topic = self._topics.by_rocketmq_name(name)
        if topic is None:
            # The group that owns the topic must exist.
            self._configs.ensure(config.group_name, self._clock.now_ms())
            topic = self._topics.auto_create_for_rocketmq(name, "", queue_count, self._clock.now_ms())
        if topic is None:
            raise UnknownTopic(f"topic[{name}] not exist")
        if not topic.perm & flags.PERM_WRITE:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        self._topics.add_origins(topic, origins, self._clock.now_ms())
        return topic
