"""The class StreamMembership: one broker's part in a stream, from the object store to the replica of the log.

membership = StreamMembership(objects, options, clock, own endpoints, ...)
await membership.join(files, lock)      # the store is tested, this broker has its number, the log is compared
store = membership.open(...)            # the log is recovered
membership.watch()                      # which brokers there are, and who owns the stream, is kept up to date
await membership.replica.follow()       # returns when this broker owns the stream
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Final, TypeVar

from duolog.bridge.clock import Clock
from duolog.bridge.cluster.members import Members
from duolog.bridge.cluster.owner_probe import ProbedOwner
from duolog.bridge.cluster.security_mark import check_key_file, check_security
from duolog.bridge.config import Options
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.net.nodes import Endpoints, Nodes
from duolog.bridge.security.secret_box import SecretBox
from duolog.store.files import Files
from duolog.store.objects.counted import CountedObjects
from duolog.store.objects.errors import ObjectStoreError, StoreRetry, StoreUnknown
from duolog.store.objects.interface import ObjectStore
from duolog.store.objects.opening import open_objects
from duolog.store.objects.options import ObjectStoreOptions
from duolog.store.objects.self_test import check_creates
from duolog.store.shared.events import Clients, Deposed, Event, StoreAnswers, StoreTrouble
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.replica import Replica

REFRESH_S: Final = (1.0, 1.0, 2.0, 4.0, 20.0)  # Between two looks at which brokers there are; the last one repeats.
RETRY_S: Final = 0.5
ID_BYTES: Final = 16
NUMBER_BYTES: Final = 4  # At the end of a writer's id: the number of the broker.

T = TypeVar("T")
log = logging.getLogger("cluster")


class OwnershipLost(Exception):
    """Another broker owns the stream. This process must begin again, because its state has what the log lacks."""


def open_stream_objects(options: Options) -> ObjectStore:
    """Return the object store of `shared.url`; nothing is sent yet. Raises StoreRefused."""
    shared = options.shared
    return open_objects(
        ObjectStoreOptions(
            shared.url, shared.endpoint, shared.region, shared.connect_timeout_ms, shared.request_timeout_ms
        )
    )


def shared_options(options: Options) -> SharedOptions:
    """Return the settings of the replica."""
    shared = options.shared
    return SharedOptions(
        flush_interval_ms=shared.flush_interval_ms,
        object_bytes=shared.object_bytes,
        in_flight_bytes=shared.in_flight_bytes,
        tail_bytes=shared.tail_bytes,
        behind_bytes_max=shared.behind_bytes_max,
        cache_bytes=shared.cache_bytes,
        takeover_ms=options.cluster.takeover_ms,
    )


class StreamMembership:
    """The object store, the other brokers, and the replica of this broker."""

    def __init__(
        self,
        objects: ObjectStore,
        options: Options,
        clock: Clock,
        own: Endpoints,
        metrics: Metrics,
        on_deposed: Callable[[OwnershipLost], None],
        on_progress: Callable[[], None],
        clients: Clients,
    ) -> None:
        self.objects = CountedObjects(objects, metrics.object_requests, metrics.object_bytes)
        self._metrics = metrics
        self.replica: Replica
        self.nodes: Nodes
        self._options, self._clock, self._own = options, clock, own
        self._on_deposed, self._on_progress = on_deposed, on_progress
        self._clients = clients
        self._members = Members(self.objects)
        self._watching: asyncio.Task[None] | None = None
        self._is_in_trouble = False

    # -- The start

    async def check_key_file(self, path: Path, *, is_there: bool) -> None:
        """Raise WrongSecurity if this broker lacks the key of the stream. Waits as long as the store does not answer.

        Raises StoreRefused.
        """
        await self._persist(lambda: check_key_file(self.objects, path, is_there=is_there))

    async def join(self, files: Files, lock: int, box: SecretBox | None) -> None:
        """Test the store, register this broker, and prepare the data directory, whose lock is given.

        `box` has the key of the stream's brokers; None: security is off.

        Waits as long as the store does not answer. Raises ObjectStoreError, StoreError and OSError.
        """
        await self.check_store()
        await self._persist(lambda: check_security(self.objects, box))
        own = await self._persist(lambda: self._members.register(self._own))
        await self._persist(self._members.refresh)
        self.nodes = Nodes(own, None)
        self.replica = await Replica.join(
            self.objects,
            files,
            lock,
            writer=secrets.token_bytes(ID_BYTES - NUMBER_BYTES) + own.id.to_bytes(NUMBER_BYTES),
            new_stream=secrets.token_bytes(ID_BYTES),
            claim=self._own.encode(),
            options=shared_options(self._options),
            mono_ms=self._clock.mono_ms,
            on_event=self._on_event,
            on_progress=self._on_replica_progress,
            clients=self._clients,
        )
        self._metrics.shared_lost_entries = self.replica.joined.lost.entries
        self.update_nodes()

    async def check_store(self) -> None:
        """Test that the store creates each object once. Raises UnreliableStore, and StoreRefused."""
        await self._persist(lambda: check_creates(self.objects, secrets.token_hex(ID_BYTES)))

    async def _persist(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send requests again until the store answers."""
        while True:
            try:
                found = await request()
            except (StoreRetry, StoreUnknown) as error:
                self._note_trouble(str(error))
            else:
                self._note_answer()
                return found
            await asyncio.sleep(RETRY_S)

    # -- The other brokers

    def watch(self) -> None:
        """Begin to look at times which brokers there are."""
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        for pause_s in chain(REFRESH_S, repeat(REFRESH_S[-1])):
            await asyncio.sleep(pause_s)
            try:
                await self._members.refresh()
            except ObjectStoreError as error:
                self._note_trouble(str(error))
            else:
                self._note_answer()
            self.update_nodes()

    def update_nodes(self) -> None:
        """Take over which brokers there are, and who owns the stream, as far as this broker has read its log."""
        others = {number: each for number, each in self._members.known.items() if number != self.nodes.own.id}
        self.nodes.set(others, self._owner())

    def _owner(self) -> Endpoints | None:
        if self.replica.is_owner:
            return self._own
        identity = self.replica.joined.cursor.owner
        number = int.from_bytes(identity.writer[-NUMBER_BYTES:])
        if not identity.epoch or number == self.nodes.own.id:
            return None  # No broker has written yet, or only this one before its restart.
        return self._members.known.get(number)

    def other_owner(self) -> ProbedOwner | None:
        """Return the owner of the stream; None if it is not known, or is this broker."""
        owner = self.nodes.owner
        return None if owner is None or self.nodes.is_owner else ProbedOwner(self.epoch, owner.endpoints)

    @property
    def is_alone(self) -> bool:
        """Whether this broker was the last one to write to the stream: it has the whole state after `open`."""
        joined = self.replica.joined
        return joined.won is not None or not joined.cursor.owner.epoch

    @property
    def epoch(self) -> int:
        """The epoch of the owner whose log was read last."""
        return self.replica.joined.cursor.owner.epoch

    # -- What the replica reports

    def _on_replica_progress(self) -> None:
        if not self.replica.is_owner:
            self.update_nodes()
        self._on_progress()

    def _on_event(self, event: Event) -> None:
        match event:
            case Deposed(reason):
                self._on_deposed(OwnershipLost(reason))
            case StoreTrouble(reason):
                self._note_trouble(reason)
            case StoreAnswers():
                self._note_answer()

    def _note_trouble(self, reason: str) -> None:
        """Log the first failure of several in a row."""
        if not self._is_in_trouble:
            self._is_in_trouble = True
            log.warning("object store request failed, it is repeated: %s", reason)

    def _note_answer(self) -> None:
        if self._is_in_trouble:
            self._is_in_trouble = False
            log.info("object store answers again")

    # -- The end

    async def stop(self, wait_s: float) -> None:
        """Upload the rest, for at most this time, and send no further request."""
        if self._watching is not None:
            self._watching.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.replica.end()
        self.replica.stop()
