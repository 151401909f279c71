"""The brokers of a stream in the object store: `nodes/<number>` has the addresses of one broker, in JSON.

A broker's number is its id for Kafka clients, so it stays the same as long as the address of its Kafka port does: a
broker that starts takes the object that has its addresses, or else creates the first number that is free. An orderly
stop keeps the object, since clients may connect to the broker again. The object of a broker that never comes back is
removed by hand; until then Kafka clients may try its address when they look for the owner.
"""

import logging
from typing import Final

from duolog.bridge.net.nodes import ENDPOINTS_BYTES_MAX, Endpoints, Node
from duolog.store.objects.errors import StoreRefused
from duolog.store.objects.interface import Creation, ObjectStore

FOLDER: Final = "nodes/"
NODES_MAX: Final = 64

log = logging.getLogger("cluster")


def key_of(number: int) -> str:
    return f"{FOLDER}{number:04}"


class Members:
    """All brokers of the stream, by number."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.known: dict[int, Endpoints] = {}

    async def register(self, own: Endpoints) -> Node:
        """Return this broker with its number. Raises ObjectStoreError, and StoreRefused if NODES_MAX are registered."""
        for number in range(NODES_MAX):
            data = own.encode()
            if await self._objects.create(key_of(number), data) is Creation.CREATED:
                self.known[number] = own
                return Node(number, own)
            found = await self._read(number)
            if found is not None and found.kafka == own.kafka:
                if found != own:  # Another port has moved. No other broker has this Kafka address.
                    await self._objects.delete([key_of(number)])
                    await self._objects.create(key_of(number), data)
                self.known[number] = own
                return Node(number, own)
        raise StoreRefused(
            f"{NODES_MAX} brokers are registered in {FOLDER}: remove the objects of those that will not come back"
        )

    async def refresh(self) -> None:
        """Read which brokers there are. Raises ObjectStoreError."""
        listed = await self._objects.list(FOLDER, limit=NODES_MAX)
        numbers = {int(name) for each in listed if (name := each.key.removeprefix(FOLDER)).isdecimal()}
        for number in self.known.keys() - numbers:
            del self.known[number]
        for number in numbers - self.known.keys():
            await self._read(number)

    async def _read(self, number: int) -> Endpoints | None:
        data = await self._objects.get(key_of(number), ENDPOINTS_BYTES_MAX)
        if data is None:
            return None
        try:
            found = self.known[number] = Endpoints.decode(data)
        except ValueError as error:
            log.warning("addresses of a broker cannot be read: key=%s reason=%r", key_of(number), str(error))
            return None
        return found
