"""What an operation on a topic needs. Some topics hold messages of others, and need the rights on those instead.

    orders                      the operation on the topic
    %RETRY%group, %DLQ%group    READ on the group, and READ on the topics that its messages came from, which the broker
                                has noted (`Topics.add_origins`), and on those that the group consumes; POP's
                                %RETRY%group+topic names its topic. If it is not known which topics they came from,
                                READ on all topics. DESCRIBE, ALTER and DELETE need it on the group
    SCHEDULE_TOPIC_XXXX,        everybody's messages: the operation on the cluster
    timer, half, op topics
    RMQ_SYS_TRACE_TOPIC         WRITE is as for any topic, because clients send traces; to read them, the cluster

All names are in Kafka's spelling.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from duolog.bridge.security.needs import AnyOf, cluster, group, topic
from duolog.bridge.security.rules import ANY, Operation
from duolog.protocol import names
from duolog.protocol.rocketmq import names as rocketmq_names

RETRY: Final = names.kafka_name(rocketmq_names.RETRY_PREFIX)
DLQ: Final = names.kafka_name(rocketmq_names.DLQ_PREFIX)
_OF_EVERYBODY: Final = frozenset(
    {
        rocketmq_names.SCHEDULE_TOPIC,
        rocketmq_names.TIMER_TOPIC,
        rocketmq_names.HALF_TOPIC,
        rocketmq_names.OP_HALF_TOPIC,
        rocketmq_names.TRANS_CHECK_MAX_TIME_TOPIC,
        rocketmq_names.TRACE_TOPIC,
    }
)
_OF_MESSAGES: Final = (Operation.READ, Operation.WRITE)
Needs = tuple[AnyOf, ...]


class Resources:
    """Gives the needs of operations on topics. `origins` returns the topics of a group's retries and dead letters."""

    def __init__(self, origins: Callable[[str], Iterable[str]]) -> None:
        self._origins = origins

    def is_plain(self, name: str) -> bool:
        """Whether an operation on the topic needs that right alone."""
        return not name.startswith("..") and name not in _OF_EVERYBODY

    def topic(self, name: str, operation: Operation) -> Needs:
        """Return what an operation on the topic of this name needs: all of these."""
        return _plain(name, operation) if self.is_plain(name) else self._special(name, operation)

    def _special(self, name: str, operation: Operation) -> Needs:
        if name in _OF_EVERYBODY:
            is_trace = name == rocketmq_names.TRACE_TOPIC and operation is Operation.WRITE
            return (topic(name, operation) if is_trace else cluster(operation),)
        for prefix in (RETRY, DLQ):
            if name.startswith(prefix):
                return self._of_group(name.removeprefix(prefix), operation)
        return (topic(name, operation),)

    def _of_group(self, named: str, operation: Operation) -> Needs:
        group_name, plus, origin = named.partition("+")
        if operation not in _OF_MESSAGES:
            return (group(group_name, operation),)
        origins = [origin] if plus else sorted(self._origins(group_name)) or [ANY]
        return (group(group_name, Operation.READ), *(topic(each, Operation.READ) for each in origins))


@lru_cache(4096)
def _plain(name: str, operation: Operation) -> Needs:
    return (topic(name, operation),)
