"""A backup in a bucket, and its restore: an object for each file of a backup, under the same names.

An upload that was interrupted has left objects, and no `backup.json`. It is repeated with the same URL: objects that
have the content of their file by now are kept, and all others are replaced or deleted.
"""

from collections.abc import Callable, Iterator, Mapping

from crc32c import crc32c

from duolog.store.backup.directory import noted
from duolog.store.backup.manifest import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    BackupFailed,
    BackupManifest,
    CopiedFile,
    check_copy,
    decode_manifest,
    encode_manifest,
    is_path,
    unfinished,
)
from duolog.store.backup.new_directory import NewDataDirectory, WrittenFile
from duolog.store.backup.sources import Sources, verify_log
from duolog.store.objects.interface import Creation, FileStore, ObjectStore
from duolog.store.objects.transfers import list_all, persist, read_ranges

NoteBytes = Callable[[int], None]


class BucketBackup:
    """The backup at the prefix of an object store: a new one, an unfinished one, or one to be restored."""

    def __init__(self, objects: FileStore, url: str) -> None:
        self._objects, self._url = objects, url.rstrip("/")

    # -- Backup

    async def left_over(self) -> dict[str, int]:
        """Return the sizes of the objects that an unfinished backup has left, by key.

        Raises BackupFailed if the prefix has a finished backup or other objects, and ObjectStoreError.
        """
        found = {each.key: each.size for each in await list_all(self._objects)}
        if MANIFEST in found:
            raise BackupFailed(f"{self._url} has a finished backup: use another prefix for each backup")
        for key in found:
            if not is_path(key):
                raise BackupFailed(f"{self._url} has {key!r}, which is no part of a backup: use a prefix of its own")
        return found

    async def upload(self, sources: Sources, left_over: Mapping[str, int], note_bytes: NoteBytes) -> None:
        """Verify the log, and copy all files. Blocks while it reads the files.

        `note_bytes` is called for each block of bytes. Raises BackupFailed, ObjectStoreError and OSError.
        """
        verify_log(sources.copied_files, sources.position)
        checksums = {
            each.path: await self._store(sources, each, left_over.get(each.path), note_bytes) for each in sources.files
        }
        others = sorted(left_over.keys() - checksums.keys())
        if others:
            await persist(lambda: self._objects.delete(others))
        await self._finish(encode_manifest(sources.manifest(checksums)))

    async def _store(self, sources: Sources, file: CopiedFile, size_there: int | None, note_bytes: NoteBytes) -> int:
        """Store a file, unless its object has the same content, and return its checksum."""
        if size_there == file.size:
            own = 0
            for block in sources.blocks(file):
                own = crc32c(block, own)
            if await checksum(self._objects, file) == (file.size, own):
                note_bytes(file.size)
                return own
        crc = 0

        def blocks() -> Iterator[bytes]:
            nonlocal crc
            crc = 0  # The upload may be repeated.
            for block in sources.blocks(file):
                crc = crc32c(block, crc)
                yield block

        await persist(lambda: self._objects.put(file.path, noted(blocks(), note_bytes)))
        return crc

    async def _finish(self, content: bytes) -> None:
        if await persist(lambda: self._objects.create(MANIFEST, content)) is Creation.EXISTS:
            found = await persist(lambda: self._objects.get(MANIFEST, MANIFEST_BYTES_MAX))
            if found != content:
                raise BackupFailed(f"another backup was written to {self._url} at the same time: use another prefix")

    # -- Restore

    async def manifest(self) -> BackupManifest:
        """Return the manifest of a finished backup. Raises BackupFailed and ObjectStoreError."""
        found = await persist(lambda: self._objects.get(MANIFEST, MANIFEST_BYTES_MAX))
        if found is None:
            raise unfinished(self._url)
        return decode_manifest(found, self._url)

    async def restore(self, manifest: BackupManifest, data: str, note_bytes: NoteBytes) -> None:
        """Copy the backup to a data directory that is empty or does not exist, and verify the copy.

        Blocks while it writes. Raises BackupFailed, ObjectStoreError and OSError.
        """
        with NewDataDirectory(data) as new:
            for each in manifest.files:
                file = WrittenFile(new.files, each.path)
                try:
                    async for block in read_ranges(self._objects, each.path, 0, each.size):
                        file.write(block)
                        note_bytes(len(block))
                    file.sync()
                finally:
                    file.close()
                if each.size and not file.size:
                    raise BackupFailed(f"{self._url}/{each.path} is missing, or empty: restore another backup")
                check_copy(manifest, self._url, each, file.size, file.crc)
            new.finish_restore(manifest)


async def checksum(objects: ObjectStore, file: CopiedFile) -> tuple[int, int]:
    """Return the size of an object, up to that of the file, and its CRC-32C. Raises ObjectStoreError."""
    size = crc = 0
    async for block in read_ranges(objects, file.path, 0, file.size):
        size, crc = size + len(block), crc32c(block, crc)
    return size, crc
