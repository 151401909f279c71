"""The Protocols of an object store, as the shared log and as backups use it."""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from duolog.store.entry import Buffer

LIST_LIMIT = 1000  # Objects that one request for a list returns at most. S3, Google and Azure have pages of this size.


# What an object is to contain: the bytes, or its parts, which are sent one after another and never copied.
Content = Buffer | tuple[Buffer, ...]


def size_of(content: Content) -> int:
    """Return the number of bytes of an object with this content."""
    return sum(map(len, content)) if isinstance(content, tuple) else len(content)


class Creation(Enum):
    """What a request to create an object ended with."""

    CREATED = "created"
    EXISTS = "exists"


class ObjectEntry(NamedTuple):
    """One object of a list: its key, without the prefix of the store's URL, and its size in bytes."""

    key: str
    size: int


class ObjectStore(Protocol):
    """Objects by key under one prefix. Keys are names joined by `/`, such as `wal/00000000000000000007`.

    Every method raises StoreRetry or StoreRefused (`errors.py`), and `create` also StoreUnknown. Each of them sends its
    request once. A method that is cancelled may have had its effect.
    """

    async def create(self, key: str, content: Content) -> Creation:
        """Store the object if no object has its key. Readers never see a part of an object.

        The buffers must not change before the method returns or raises.
        """
        ...

    async def get(self, key: str, bytes_max: int) -> bytes | None:
        """Return the whole object, or None if it does not exist.

        Raises StoreRefused, before the content is read, if the object is larger than `bytes_max`.
        """
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """Return `length` bytes from `start` on, or None if the object does not exist.

        The result is shorter where the object ends, and empty if `start` is at its end or after it.
        """
        ...

    async def list(self, prefix: str, start_after: str = "", limit: int = LIST_LIMIT) -> Sequence[ObjectEntry]:
        """Return the objects of a folder and its folders, in the order of their keys: `limit` of them at most.

        `prefix` ends with `/`, or is empty for all objects. `start_after` is a key: only objects with greater keys are
        listed. A list with fewer entries than `limit` is complete.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects. A key without an object is no error.

        If the method raises, some of the objects may have been deleted.
        """
        ...


class FileStore(ObjectStore, Protocol):
    """An object store that also takes files of any size. Backups use it; the log of a stream never does."""

    async def put(self, key: str, blocks: Iterable[bytes]) -> None:
        """Store an object, replacing any other one with its key. Readers never see a part of it.

        A large object is sent in parts, so it is never in memory as a whole. What `blocks` raises is passed on.
        Raises StoreRetry and StoreRefused.
        """
        ...
