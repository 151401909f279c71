"""The class LocalObjects: an object store in a local directory, `file://`, for trials.

Directories and files are accessible to their owner alone, as those of a data directory are (`store/files.py`). The
directory is made when the first object is created, so a command that is refused leaves none.
"""

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from duolog.store.files import DIRECTORY_MODE, FILE_MODE
from duolog.store.objects.errors import StoreRefused
from duolog.store.objects.interface import LIST_LIMIT, Content, Creation, ObjectEntry
from duolog.store.objects.options import Location, ObjectStoreOptions
from duolog.store.objects.remote import RemoteObjects


class LocalObjects(RemoteObjects):
    """The objects below the directory of a URL."""

    def __init__(self, location: Location, options: ObjectStoreOptions) -> None:
        """Raises StoreRefused if the directory exists and cannot be used, or cannot be made."""
        self._root = location.prefix
        super().__init__(None, location, options)
        if not self._is_there():
            place = self._root
            while not os.path.lexists(place):
                place = os.path.dirname(place)
            if not os.path.isdir(place):
                raise StoreRefused(f"the directory cannot be made or read: {place} is no directory")

    async def create(self, key: str, content: Content) -> Creation:
        self._make()
        created = await super().create(key, content)
        if created is Creation.CREATED:
            await asyncio.to_thread(self._close_to_others, key)
        return created

    async def put(self, key: str, blocks: Iterable[bytes]) -> None:
        self._make()
        await super().put(key, blocks)
        await asyncio.to_thread(self._close_to_others, key)

    async def get(self, key: str, bytes_max: int) -> bytes | None:
        return await super().get(key, bytes_max) if self._is_there() else None

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        return await super().get_range(key, start, length) if self._is_there() else None

    async def list(self, prefix: str, start_after: str = "", limit: int = LIST_LIMIT) -> Sequence[ObjectEntry]:
        return await super().list(prefix, start_after, limit) if self._is_there() else []

    async def delete(self, keys: Sequence[str]) -> None:
        if self._is_there():
            await super().delete(keys)

    # -- The directory

    def _is_there(self) -> bool:
        """Open the directory if it exists; return whether it does."""
        if self._store is None and os.path.isdir(self._root):
            self._open()
        return self._store is not None

    def _make(self) -> None:
        if self._store is None:
            try:
                os.makedirs(self._root, mode=DIRECTORY_MODE, exist_ok=True)
            except OSError as error:
                raise StoreRefused(f"the directory cannot be made or read: {self._root}: {error.strerror}") from error
            self._open()

    def _open(self) -> None:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore

        try:
            self._store = LocalStore(
                self._root, mkdir=True, automatic_cleanup=True
            )  # The cleanup removes empty directories.
        except (BaseError, ValueError, OSError) as error:
            raise StoreRefused(f"the directory cannot be made or read: {error}") from error

    def _close_to_others(self, key: str) -> None:
        """Take access from other users. The object may be deleted meanwhile, and its directories with it."""
        path = f"{self._root}/{key}"
        with suppress(FileNotFoundError):
            os.chmod(path, FILE_MODE)
            while (path := os.path.dirname(path)) != self._root:
                os.chmod(path, DIRECTORY_MODE)
