"""Kafka requests that wait: how the driver of `bridge/net/waiting.py` counts and answers them.

A slot of the outbox keeps the position of the waiting request among the connection's answers. The memory of the request
is charged to the slot as an unsent answer. The request runs in slices of `sliced_requests.py`, in turns with other
requests that run there. Meanwhile the connection handles further requests.
"""

from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps
from duolog.bridge.kafka.requests.sliced_requests import SlicedRequests
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.bridge.net.purgatory import Purgatory
from duolog.bridge.net.waiting import RequestDriver, WaitingSteps
from duolog.protocol.kafka.api_messages import ApiKey


def answer_in_steps(
    connection: OrderedConnection,
    request: KafkaRequest,
    steps: WaitingSteps[Answer | Steps],
    purgatory: Purgatory,
    sliced_requests: SlicedRequests,
) -> Answer | Steps | OutboxSlot | None:
    """Run the steps of a request; return what a handler returns. Raises what the steps raise.

    The steps end with the answer, or with the generator that builds the answer in slices.
    """
    try:
        wait = next(steps)
    except StopIteration as end:
        result: Answer | Steps = end.value
        return result
    driver = _KafkaDriver(connection, request, steps, purgatory, sliced_requests)
    return driver.begin(wait) or driver.slot


class _KafkaDriver(RequestDriver[OrderedConnection, Answer | Steps]):
    """Drives the steps of one request.

    The class has more than 20 methods because it extends RequestDriver and implements `sliced_requests.Job`.
    """

    __slots__ = ("_kept_bytes", "_request", "_sliced_requests", "slot")

    def __init__(
        self,
        connection: OrderedConnection,
        request: KafkaRequest,
        steps: WaitingSteps[Answer | Steps],
        purgatory: Purgatory,
        sliced_requests: SlicedRequests,
    ) -> None:
        super().__init__(connection, purgatory, steps, outlives_connection=False)
        self._request, self._sliced_requests = request, sliced_requests
        self.slot: OutboxSlot | None = None  # Set by the first wait.
        self._kept_bytes = 0  # The bytes that are charged to the slot, in addition to the request.

    def _keep_waiting(self, kept_bytes: int) -> None:
        outbox = self.connection.outbox
        if self.slot is None:
            self.slot = outbox.reserve(self._request.held_bytes)
        if kept_bytes != self._kept_bytes:
            outbox.charge_more(self.slot, kept_bytes - self._kept_bytes)
            self._kept_bytes = kept_bytes

    def _go_on_in_next_turn(self) -> None:
        self._sliced_requests.add(self)

    def _finish(self, result: Answer | Steps) -> None:
        assert self.slot is not None, "a request that waited has a slot"
        if isinstance(result, Answer):
            self.connection.outbox.fill(self.slot, result)
        else:
            self._sliced_requests.finish(self.connection, self._request, self.slot, result)

    def _fail(self, error: Exception) -> None:
        assert self.slot is not None, "a request that waited has a slot"
        self.connection.failed(self._request, error, self.slot)

    # -- Methods that SlicedRequests calls

    @property
    def kind(self) -> str:
        return f"kafka {ApiKey(self._request.api_key).name.lower()}"

    @property
    def built_bytes(self) -> int:
        return 0  # A waiting request is never set aside: without room it reads no further records, so it ends soon.

    def run_slice(self) -> bool:
        """Run the next steps; the generator adds the request again when it waits for another turn."""
        self._go_on(None)
        return True
