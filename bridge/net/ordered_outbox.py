"""The class OrderedOutbox: sends answers in request order, because Kafka's clients expect this order."""

from collections import deque
from typing import cast

from duolog.bridge.net.answer_buffer import CLOSED, AnswerBuffer
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import Connection
from duolog.store.entry import Promise
from duolog.store.errors import StoreError

CHARGED_BYTES_MIN = 1024  # Waiting answers of this size and more count towards the limits in bytes.


class OutboxSlot:
    """The place of one answer in the order. It is filled once; None if the request has no answer."""

    __slots__ = ("answer", "has_failed", "held_bytes", "is_filled")

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.is_filled = False
        self.held_bytes = 0  # The memory of the request until it is answered, which is charged like an answer.
        self.has_failed = False  # The slot was filled because of a fault; a later `fill` is ignored.


class OrderedOutbox:
    """The answers of one connection. They may become ready in any order, and are sent in request order.

    Only the promise of the first answer is awaited, because the log keeps promises in the order in which it gave them.
    """

    __slots__ = ("_answers", "_connection", "_is_waiting", "_kept", "_queue", "reserved", "reserved_count")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answers: AnswerBuffer = connection.answers
        self._kept = connection.log.kept
        self._queue: deque[Answer | OutboxSlot] = deque()  # In request order.
        self._is_waiting = False  # Whether the first answer waits for the log.
        self.reserved: OutboxSlot | None = None  # The slot that was reserved last; None: its answer has left.
        self.reserved_count = 0  # A connection compares it to see whether a request has reserved a slot.

    def add(self, answer: Answer) -> None:
        """Add the answer to the request that was received last."""
        promise = answer.promise
        if self._queue:
            self._append(answer)
            self._charge(answer)
        elif promise is None or self._kept(promise):
            self._answers.write(answer.buffers)
        else:
            self._append(answer)
            self._charge(answer)
            self._wait(promise)

    def reserve(self, held_bytes: int = 0) -> OutboxSlot:
        """Reserve a slot for the answer to the request that was received last.

        `held_bytes` is the memory of the request until it is answered. It is charged like an answer that waits.
        """
        slot = self.reserved = OutboxSlot()
        self.reserved_count += 1
        if held_bytes >= CHARGED_BYTES_MIN:
            slot.held_bytes = held_bytes
            self._answers.charge(held_bytes)
        self._append(slot)
        return slot

    def charge_more(self, slot: OutboxSlot, more_bytes: int) -> None:
        """Charge further memory of a request that has a slot: the part of its answer that was built."""
        if more_bytes and not slot.is_filled:
            slot.held_bytes += more_bytes
            self._answers.charge(more_bytes)

    def _append(self, item: Answer | OutboxSlot) -> None:
        queue, connection = self._queue, self._connection
        queue.append(item)
        connection.unanswered = unanswered = len(queue)
        if unanswered >= connection.bounds.unanswered_max:
            connection.hold()

    def fill(self, slot: OutboxSlot, answer: Answer | None) -> None:
        """Fill a slot with an answer; None: the request has no answer (acks=0)."""
        if self._connection.closed or slot.has_failed:
            return
        assert not slot.is_filled, "answered twice"
        slot.answer, slot.is_filled = answer, True
        if slot.held_bytes:
            self._answers.charge(-slot.held_bytes)
        if answer is not None:
            self._charge(answer)
        if slot is self._queue[0]:
            self._advance()

    def fail(self, slot: OutboxSlot, answer: Answer) -> None:
        """Fill a slot with the answer of a fault, unless it is filled; answers that follow for it are dropped."""
        if not slot.is_filled:
            self.fill(slot, answer)
            slot.has_failed = True

    def _advance(self) -> None:
        """Send the answers that are ready, from the first one up to one that is not."""
        queue, answers, kept = self._queue, self._answers, self._kept
        while queue:
            item = queue[0]
            if isinstance(item, OutboxSlot):
                if not item.is_filled:
                    break
                answer = item.answer
            else:
                answer = item
            if answer is not None:
                promise = answer.promise
                if promise is not None and not kept(promise):
                    self._wait(promise)
                    break
                answers.write(answer.buffers)
                self._charge(answer, -1)
            if queue.popleft() is self.reserved:
                self.reserved = None  # Releases the memory of the answer.
        connection = self._connection
        connection.unanswered = unanswered = len(queue)
        if unanswered <= connection.bounds.unanswered_max // 2:
            # Not after every answer, because stopping and starting to read cost a system call each.
            connection.go_on_soon()

    def drop(self) -> None:
        """Drop all answers, and the reference to the closed connection.

        The outbox and the connection would keep each other alive until the garbage collector runs, which takes long in
        an idle process. Each such connection would keep its megabyte of the allocator's memory from being released.
        """
        self._connection = cast(Connection, CLOSED)
        self._queue.clear()
        self.reserved = None

    def _charge(self, answer: Answer, sign: int = 1) -> None:
        """Charge an answer that waits. Small answers are limited by the number of unanswered requests instead."""
        buffers = answer.buffers
        if len(buffers) > 1 or len(buffers[0]) >= CHARGED_BYTES_MIN:
            self._answers.charge(sign * answer.size)

    def _wait(self, promise: Promise) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._connection.log.when(promise, self._log_kept)

    def _log_kept(self, error: StoreError | None) -> None:
        self._is_waiting = False
        if error is not None:
            self._connection.close(f"the log cannot keep what an answer promises: {error}")
        elif not self._connection.closed:
            self._advance()
