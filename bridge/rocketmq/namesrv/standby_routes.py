"""Standbys in routes, for producers: each is a broker of its own, to which they send when the owner does not answer.

    queueDatas   duolog             read 4, write 4, perm 6     brokerDatas   duolog             0: the owner's address
                 duolog-standby-1   read 0, write 4, perm 2                   duolog-standby-1   0: that standby's

RocketMQ's clients ask for routes every 30 s (`pollNameServerInterval`), and nothing that a broker answers makes them
ask earlier. Their producers try a send again with a broker of another name (`selectOneMessageQueue`). A standby sends
messages on to the owner (`bridge/cluster/forwarding.py`), and serves them once it is the owner.

A standby has as many queues as the topic, and their ids are those of the topic. So the messages of producers that take
one queue after the other are spread evenly. A producer that chooses the queue by `hash % queues.size()` sends a key to
the same queue of the topic, whether standbys are named or not. Consumers do not see these queues, because they have no
permission to read.

The only standby in a route has two queues of a topic with one queue, and the owner takes both for that one queue. When
a send to the owner has timed out, Java's producer selects a queue for another try before it finds that no time is left,
and its next send takes the queue after that one: with two queues in all, this would be the owner's again.
"""

from typing import Final

from duolog.bridge.config import Options
from duolog.bridge.net.nodes import Address, Node, Nodes
from duolog.protocol.rocketmq.bodies import MASTER_ID, BrokerData, QueueData, TopicRouteData
from duolog.protocol.rocketmq.messages.flags import PERM_WRITE
from duolog.protocol.rocketmq.names import AUTO_CREATE_TOPIC, DLQ_PREFIX, RETRY_PREFIX

STANDBYS_MAX: Final = 2  # In one route.
QUEUES_FOR_ONE: Final = 2  # What the only standby in a route has of a topic with one queue.


def add_standbys(route: TopicRouteData, topic: str, nodes: Nodes, options: Options) -> None:
    """Add the standbys to a route that has the owner, if applications send to the topic.

    Tools use the routes of retry topics and of the topic with the name of the cluster to find the brokers of a group,
    and add up what these answer.
    """
    (queues,) = route.queue_datas
    is_of_tools = topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or topic in (
        options.rocketmq.cluster, options.rocketmq.broker,
    )  # fmt: skip
    if not options.rocketmq.standby_routes or is_of_tools or not queues.perm & PERM_WRITE:
        return
    standbys = nodes.standbys[:STANDBYS_MAX]
    count = queues.write_queue_nums
    if count == 1 and len(standbys) == 1:
        count = QUEUES_FOR_ONE
    # Java's producers take the number of read queues of the template for the topics that it stands for.
    read_count = count if topic == AUTO_CREATE_TOPIC else 0
    for node in standbys:
        broker = broker_of(node.endpoints.rocketmq, standby_name(options.rocketmq.broker, node), options)
        route.broker_datas.append(broker)
        route.queue_datas.append(
            QueueData(
                broker_name=broker.broker_name, read_queue_nums=read_count, write_queue_nums=count, perm=PERM_WRITE
            )
        )


def is_of_route(queue_id: int, queue_count: int, options: Options) -> bool:
    """Return whether a queue that a topic does not have may be one that a route gives to the only standby.

    A standby that has become the owner is asked for it, too, until its clients ask for routes again.
    """
    return bool(options.shared.url) and queue_count == 1 and queue_id < QUEUES_FOR_ONE


def standby_name(broker: str, node: Node) -> str:
    """Return the broker name of a standby. It sorts after the owner's, as producers sort the queues of a topic."""
    return f"{broker}-standby-{node.id}"


def broker_of(address: Address, name: str, options: Options) -> BrokerData:
    """Return a broker, the master of its name, in the format of routes."""
    return BrokerData(
        cluster=options.rocketmq.cluster, broker_name=name, broker_addrs={MASTER_ID: address_text(address)}
    )


def address_text(address: Address) -> str:
    """Format an address as clients parse it: they split it at the last colon."""
    host, port = address
    return f"{host}:{port}"
