"""The exceptions by which a message or a batch is refused before anything of it is appended."""

from duolog.bridge.state.topic_table import Topic


class NotSupported(Exception):
    """The message asks for a transaction, or for a delay that is not available here."""


class ProduceRefused(Exception):
    """The topic is one of the broker's own, to which no client may send."""


class IllegalMessage(Exception):
    """The RocketMQ message must not be stored, for example because its properties cannot be read."""


class MessageTooLarge(IllegalMessage):
    """The RocketMQ message exceeds `rocketmq.body_bytes_max`, or its properties exceed the format's limit."""


def check_may_produce(topic: Topic) -> None:
    """Raise ProduceRefused for a topic of the broker's own."""
    if not topic.may_produce:
        raise ProduceRefused(f"sending to topic {topic.name} is forbidden, it is the broker's own")
