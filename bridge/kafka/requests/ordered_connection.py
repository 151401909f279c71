"""A client's connection as handlers see it: its answers leave in the order of its requests."""

from collections.abc import Callable
from functools import partial

from duolog.bridge.kafka.requests import fault_answers
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import BUG, Connection, Log
from duolog.bridge.net.ordered_outbox import OrderedOutbox, OutboxSlot
from duolog.bridge.net.server import Server
from duolog.protocol.kafka.api_messages import ApiKey


class OrderedConnection(Connection):
    """A connection with an outbox in request order. A subclass receives the requests."""

    wire = "kafka"

    __slots__ = ("_log_directory", "outbox")

    def __init__(self, server: Server, log: Log, log_directory: str) -> None:
        """`log_directory` is what the answer to a failed DescribeLogDirs request names."""
        super().__init__(server, log)
        self.outbox = OrderedOutbox(self)
        self._log_directory = log_directory

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.outbox.drop()

    def failed(self, request: KafkaRequest, error: Exception, slot: OutboxSlot) -> None:
        """Report an unexpected error of a request that has a slot, and answer the request there."""
        self.report(request, error)
        self.answer_fault(request, partial(self.outbox.fail, slot))

    def report(self, request: KafkaRequest, error: Exception) -> None:
        """Count and log an unexpected error, by the API of the request."""
        self.fault(error, ApiKey(request.api_key).name.lower())

    def answer_fault(self, request: KafkaRequest, answer_with: Callable[[Answer], None]) -> None:
        """Answer with UNKNOWN_SERVER_ERROR, or close the connection where the API has no place for it."""
        answer = fault_answers.answer_of(request, self._log_directory)
        if answer is None:
            self.close(BUG, abort=True)
        else:
            answer_with(answer)
