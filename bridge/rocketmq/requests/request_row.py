"""One row of the table of RocketMQ requests (`request_table.py`): its handler, and how the connection treats it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.bridge.security.needs import AnyOf
from duolog.protocol.rocketmq.remoting import RemotingCommand


class Row(NamedTuple):
    """How requests of one code are served.

    The handler gets the `RocketMQContext`, the connection and the request; `request_table.Handler` is its exact type.
    """

    handler: Callable[[Any, Any, RemotingCommand], Answer | None]
    counter: tuple[str, str]  # The key of the request's counter in `Metrics.requests`.
    name: str  # The same as text, for reports of faults and of long turns of the loop.
    kind: Kind
    is_limited: bool  # The connection calls `Admission.check` before the handler.
    needs: Callable[[Any, RemotingCommand], Iterable[AnyOf]]  # What a request needs; `access/requirements.py`.
    is_background: bool  # The request waits for its turn in a `BackgroundQueue`.
    # Returns the topic that alone, with the user, decides whether a request is allowed, so that sessions remember it;
    # None: each request is decided.
    topic_of: Callable[[Mapping[str, str]], str] | None = None
