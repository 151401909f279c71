"""A disk in memory that loses unsynced changes at a power cut, and disks whose operations fail.

    disk = CrashDisk(cut_at=17)                  # the 17th changing operation and all later ones raise PowerCut
    disk.after_power_cut(seed)                   # the disk as the next start might find it
    disk.after_kill()                            # the disk after a crash of the process: unsynced changes are there

The seed decides which unsynced changes survive a power cut:

  - bytes: each 4 KiB page is as after any one of the writes to it, or as before all of them. Some pages are torn; then
    the same holds for each 512-byte sector. Bytes within the length that were never written read as zeros.
  - length: as after any of the writes and truncations, or in between. Writes after a lost truncation are lost, too.
  - names: each creation, renaming and removal of a name has taken effect or not; for one name the effects are a prefix
    of its changes. A rename is one change: never both names, never none. `sync` of a file does not make its name
    durable; ext4 does that, but POSIX does not promise it.

Synced bytes, and the names in a synced directory, survive. Garbage never appears, because file systems show zeros where
blocks were allocated and not written (ext4 data=ordered, XFS).
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import NamedTuple

from duolog.store.entry import Buffer
from duolog.store.errors import StoreError

PAGE_SIZE = 4096
SECTOR_SIZE = 512
SECTORS_PER_PAGE = PAGE_SIZE // SECTOR_SIZE
TORN_SHARE = 0.2  # The share of unsynced pages that are torn.
# A power cut draws one pair: the probability that all changes to a page, length or name survive, and that none does.
SURVIVAL_ODDS = ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (0.1, 0.1), (0.8, 0.1), (0.1, 0.8))


class PowerCut(BaseException):
    """The machine has no power. It is not an Exception, so that no code of the broker catches it."""


class CrashDisk:
    """Implements `store.files.Files`. It must be used by one thread at a time.

    `operations` counts the operations that change the disk: open with `create`, write, sync, sync_directory, truncate,
    reserve, rename, remove, remove_directory, make_directory. The operation at the cut has taken effect like any
    unsynced one, but a sync at the cut has not.
    """

    def __init__(self, *, cut_at: int | None = None) -> None:
        self.cut_at = cut_at
        self.operations = 0
        self.cached = True  # If False, read_cached returns None.
        self.total_bytes = 1 << 40
        self.used_bytes: int | None = None  # None: the sum of the lengths of all files.
        self._root = _Directory()
        self._open: dict[int, _File] = {}
        self._locks: dict[int, str] = {}
        self._next_handle = 3
        self._is_off = False

    # -- Power cuts and damage

    def after_power_cut(self, seed: int) -> "CrashDisk":
        """Return the disk as the next start might find it, all durable. This object does not change."""
        disk = CrashDisk()
        disk._root = self._root.after_cut(_CutChoices(seed))
        disk.total_bytes, disk.used_bytes = self.total_bytes, self.used_bytes
        return disk

    def after_kill(self) -> "CrashDisk":
        """Return the disk as the next process finds it: unsynced changes are there, and are still unsynced."""
        disk = CrashDisk()
        disk._root = deepcopy(self._root)
        disk.total_bytes, disk.used_bytes = self.total_bytes, self.used_bytes
        return disk

    def flip(self, path: str, at: int, mask: int = 0xFF) -> None:
        """Change one durable byte, as a failing disk does."""
        file = self._file_at(path)
        for image in (file.bytes, file.durable):
            if at < image.size:
                image.put(at, bytes([image.read(1, at)[0] ^ mask]))

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        return sorted(path for path, _ in self._root.walk(""))

    def contents(self) -> dict[str, bytes]:
        return {path: file.bytes.read(file.bytes.size, 0) for path, file in self._root.walk("")}

    # -- Files: handles and bytes

    def open(self, path: str, *, create: bool = False) -> int:
        self._check_on()
        directory, name = self._parent(path)
        found = directory.entries.get(name)
        if create:
            if found is not None:
                raise _os_error(errno.EEXIST, path)
            found = _File()
            self._change(directory, {name: found}, f"create {path}")
        if not isinstance(found, _File):
            raise _os_error(errno.ENOENT if found is None else errno.EISDIR, path)
        return self._handle(found)

    def close(self, file: int) -> None:
        if self._is_off:
            return  # After a cut, closing must not raise, so that clean-up code runs.
        self._locks.pop(file, None)
        del self._open[file]

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        data = b"".join(buffers)
        cut = self._count("write", f"{len(data)} bytes at {at}")
        self._file(file).write(at, data)
        self._cut_if(cut)

    def read(self, file: int, size: int, at: int) -> bytes:
        self._check_on()
        return self._file(file).bytes.read(size, at)

    def read_cached(self, file: int, size: int, at: int) -> bytes | None:
        found = self.read(file, size, at)
        return found if self.cached and len(found) == size else None

    def read_on_disk(self, file: int, size: int, at: int) -> bytes:
        return self.read(file, size, at)

    def is_remote(self, path: str) -> bool:
        return False

    def sync(self, file: int) -> None:
        self._cut_if(self._count("sync", ""))
        self._file(file).sync()

    def size(self, file: int) -> int:
        self._check_on()
        return self._file(file).bytes.size

    def truncate(self, file: int, size: int) -> None:
        cut = self._count("truncate", f"to {size}")
        self._file(file).resize(size)
        self._cut_if(cut)

    def reserve(self, file: int, size: int) -> None:
        cut = self._count("reserve", f"up to {size}")
        if size > self._file(file).bytes.size:
            self._file(file).resize(size)
        self._cut_if(cut)

    # -- Files: names

    def sync_directory(self, path: str) -> None:
        directory = self._directory_at(path)
        self._cut_if(self._count("sync_directory", path))
        directory.sync()

    def rename(self, old: str, new: str) -> None:
        directory, old_name = self._parent(old)
        other, new_name = self._parent(new)
        assert directory is other, (
            f"rename of {old} to {new}: across directories it is two changes on some file systems"
        )
        self._change(directory, {old_name: None, new_name: self._file_at(old)}, f"rename {old} to {new}")

    def remove(self, path: str) -> None:
        directory, name = self._parent(path)
        self._file_at(path)
        self._change(directory, {name: None}, f"remove {path}")

    def remove_directory(self, path: str) -> None:
        if self._directory_at(path).entries:
            raise _os_error(errno.ENOTEMPTY, path)
        directory, name = self._parent(path)
        self._change(directory, {name: None}, f"remove_directory {path}")

    def make_directory(self, path: str) -> None:
        directory = self._root
        for name in _parts(path):
            below = directory.entries.get(name)
            if below is None:
                below = _Directory()
                self._change(directory, {name: below}, f"make_directory {path}")
            if not isinstance(below, _Directory):
                raise _os_error(errno.ENOTDIR, path)
            directory = below

    def list(self, path: str) -> list[str]:
        self._check_on()
        try:
            return sorted(self._directory_at(path).entries)
        except FileNotFoundError:
            return []

    def lock(self, path: str) -> int:
        if path in self._locks.values():
            raise _os_error(errno.EAGAIN, path)
        try:
            handle = self.open(path)
        except FileNotFoundError:
            handle = self.open(path, create=True)
        self._locks[handle] = path
        return handle

    def usage(self) -> tuple[int, int]:
        self._check_on()
        if self.used_bytes is not None:
            return self.used_bytes, self.total_bytes
        return sum(file.bytes.size for _, file in self._root.walk("")), self.total_bytes

    # -- Counting and cutting

    def _count(self, kind: str, detail: str) -> str:
        """Count one operation; return the message of PowerCut if this operation is at the cut, else ""."""
        self._check_on()
        self.operations += 1
        return f"operation {self.operations}: {kind} {detail}" if self.operations == self.cut_at else ""

    def _cut_if(self, cut: str) -> None:
        if cut:
            self._is_off = True
            raise PowerCut(cut)

    def _check_on(self) -> None:
        if self._is_off:
            raise PowerCut("the power is off")

    def _change(self, directory: "_Directory", change: "dict[str, _Node | None]", detail: str) -> None:
        kind, _, rest = detail.partition(" ")
        cut = self._count(kind, rest)
        directory.change(change)
        self._cut_if(cut)

    # -- Files and directories by path

    def _handle(self, file: "_File") -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._open[handle] = file
        return handle

    def _file(self, handle: int) -> "_File":
        return self._open[handle]

    def _parent(self, path: str) -> "tuple[_Directory, str]":
        above, _, name = path.rpartition("/")
        return self._directory_at(above), name

    def _directory_at(self, path: str) -> "_Directory":
        found: _Node = self._root
        for name in _parts(path):
            below = found.entries.get(name) if isinstance(found, _Directory) else None
            if below is None:
                raise _os_error(errno.ENOENT, path)
            found = below
        if not isinstance(found, _Directory):
            raise _os_error(errno.ENOTDIR, path)
        return found

    def _file_at(self, path: str) -> "_File":
        directory, name = self._parent(path)
        found = directory.entries.get(name)
        if not isinstance(found, _File):
            raise _os_error(errno.ENOENT if found is None else errno.EISDIR, path)
        return found


class EachCut(CrashDisk):
    """Calls `check` at every `stride`-th operation, as if the power were cut there; `phase` moves these operations.

    `check` gets the disk as the next start might find it. The random choices depend on `seed` and on the number of the
    operation. Exceptions of `check` name the operation. While `check` is None, nothing is checked.
    """

    def __init__(self, stride: int = 1, seed: int = 0, phase: int = 0) -> None:
        super().__init__()
        self._stride, self._seed, self._phase = stride, seed, phase
        self.check: Callable[[CrashDisk], None] | None = None
        self.checks = 0

    def _cut_if(self, cut: str) -> None:
        if self.check is None or self.operations % self._stride != self._phase:
            return
        self.checks += 1
        try:
            self.check(self.after_power_cut(self.operations * 7919 + self._seed))
        except StoreError as error:
            raise AssertionError(f"operation {self.operations}: {error}") from error


class FailingDisk(CrashDisk):
    """A disk on which operations of one kind fail from the n-th one on: `failures` times, or until `heal()`.

    `kind` is the name of a method, or "create" for an open with `create`. A failing write stores half of its bytes, as
    with ENOSPC. A failing sync loses the bytes that it should have synced: the operating system marks their pages as
    clean, so a later sync succeeds without writing them (PostgreSQL's "fsyncgate", 2018).
    """

    def __init__(self, kind: str, nth: int, error: int, *, failures: int | None = 1, cut_at: int | None = None) -> None:
        super().__init__(cut_at=cut_at)
        self._kind, self._error = kind, error
        self._calls_until, self._failures_left = nth, failures

    def heal(self) -> None:
        self._failures_left = 0

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        try:
            super().write(file, buffers, at)
        except OSError:
            data = b"".join(buffers)
            self._file(file).write(at, data[: len(data) // 2])
            raise

    def sync(self, file: int) -> None:
        try:
            super().sync(file)
        except OSError:
            self._file(file).forget_unsynced()
            raise

    def _count(self, kind: str, detail: str) -> str:
        cut = super()._count(kind, detail)
        if kind == self._kind:
            self._calls_until -= 1
            if self._calls_until <= 0 and self._failures_left != 0:
                if self._failures_left is not None:
                    self._failures_left -= 1
                raise _os_error(self._error, f"{kind} {detail}")
        return cut


class SmallDisk(CrashDisk):
    """A disk of at most `total_bytes`. An operation that needs more fails with ENOSPC, and has no effect."""

    def __init__(self, total_bytes: int) -> None:
        super().__init__()
        self.total_bytes = total_bytes

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        self._check_room(file, at + sum(map(len, buffers)))
        super().write(file, buffers, at)

    def reserve(self, file: int, size: int) -> None:
        self._check_room(file, size)
        super().reserve(file, size)

    def _check_room(self, file: int, size: int) -> None:
        used, total = self.usage()
        if used + max(0, size - self._file(file).bytes.size) > total:
            raise _os_error(errno.ENOSPC, f"{used} of {total} bytes are used")


# -- The contents of the disk


class _Write(NamedTuple):
    at: int
    data: bytes


class _Resize(NamedTuple):
    size: int
    shrinks: bool


class _Image:
    """The bytes of a file. Zeros after the last written byte are only counted, because a log reserves megabytes of
    them.
    """

    __slots__ = ("_written", "size")

    def __init__(self, content: bytes | bytearray = b"", size: int = 0) -> None:
        self._written = bytearray(content)
        self.size = max(size, len(content))  # Invariant: len(_written) <= size.

    def copy(self) -> "_Image":
        return _Image(self._written, self.size)

    def read(self, size: int, at: int) -> bytes:
        end = min(at + size, self.size)
        return bytes(self._written[at:end]).ljust(end - at, b"\0")

    def put(self, at: int, data: bytes) -> None:
        if at > len(self._written):
            self._written.extend(bytes(at - len(self._written)))
        self._written[at : at + len(data)] = data
        self.size = max(self.size, len(self._written))

    def resize(self, size: int) -> None:
        del self._written[size:]
        self.size = size


class _File:
    """One inode: the bytes that programs read, the durable bytes, and the unsynced changes in their order."""

    def __init__(self, content: _Image | None = None) -> None:
        self.bytes = content or _Image()
        self.durable = self.bytes.copy()
        self.unsynced: list[_Write | _Resize] = []

    def __deepcopy__(self, memo: object) -> "_File":
        """Copy the bytes, and not the changes, which never change themselves."""
        copied = _File(self.bytes.copy())
        copied.durable, copied.unsynced = self.durable.copy(), [*self.unsynced]
        return copied

    def write(self, at: int, data: bytes) -> None:
        self.bytes.put(at, data)
        self.unsynced.append(_Write(at, data))

    def resize(self, size: int) -> None:
        self.unsynced.append(_Resize(size, shrinks=size < self.bytes.size))
        self.bytes.resize(size)

    def sync(self) -> None:
        for change in self.unsynced:
            if isinstance(change, _Write):
                self.durable.put(change.at, change.data)
            else:
                self.durable.resize(change.size)
        self.unsynced = []

    def forget_unsynced(self) -> None:
        """Keep the unsynced changes readable until the power cut, but let no later sync make them durable."""
        self.unsynced = []

    def after_cut(self, choices: "_CutChoices") -> "_File":
        changes = self.unsynced
        resized = choices.moment(len(changes))  # The length is as it was after this many changes.
        lost_cut = (number for number in range(resized, len(changes)) if _is_cut(changes[number]))
        changes = changes[: next(lost_cut, len(changes))]
        image, size = self.durable.copy(), self.durable.size
        pages = _Pages(choices, len(changes))
        for number, change in enumerate(changes):
            if isinstance(change, _Write):
                pages.write(image, number, change)
                size = max(size, change.at + len(change.data)) if number < resized else size
            elif number < resized:
                size = change.size
                if change.shrinks:
                    image.resize(size)
        if size > self.durable.size:
            size = self.durable.size + choices.moment(size - self.durable.size)
        image.resize(size)
        return _File(image)


class _Pages:
    """Draws, for each page of a file or sector of a torn page, the number of changes that survive."""

    def __init__(self, choices: "_CutChoices", changes: int) -> None:
        self._choices, self._changes = choices, changes
        self._moments: dict[int, list[int]] = {}  # For each page, the number of surviving changes of each sector.

    def write(self, image: _Image, number: int, change: _Write) -> None:
        """Apply a change to the sectors in which it survives."""
        end = change.at + len(change.data)
        for sector in range(change.at // SECTOR_SIZE, -(-end // SECTOR_SIZE)):
            if number < self._moment(sector):
                start, until = max(change.at, sector * SECTOR_SIZE), min(end, (sector + 1) * SECTOR_SIZE)
                image.put(start, change.data[start - change.at : until - change.at])

    def _moment(self, sector: int) -> int:
        page, number = divmod(sector, SECTORS_PER_PAGE)
        moments = self._moments.get(page)
        if moments is None:
            draws = SECTORS_PER_PAGE if self._choices.tears() else 1
            moments = [self._choices.moment(self._changes) for _ in range(draws)]
            self._moments[page] = moments = moments * (SECTORS_PER_PAGE // draws)
        return moments[number]


class _Directory:
    """A directory: the names that programs see, the durable names, and the unsynced changes in their order."""

    def __init__(self) -> None:
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.unsynced: list[dict[str, _Node | None]] = []  # None: the name is removed.

    def change(self, change: "dict[str, _Node | None]") -> None:
        _apply(self.entries, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.unsynced = []

    def walk(self, above: str) -> "Iterator[tuple[str, _File]]":
        for name, node in self.entries.items():
            if isinstance(node, _File):
                yield above + name, node
            else:
                yield from node.walk(f"{above}{name}/")

    def after_cut(self, choices: "_CutChoices") -> "_Directory":
        entries, lost = dict(self.durable), set[str]()
        for change in self.unsynced:
            if lost.isdisjoint(change) and choices.moment(1):
                _apply(entries, change)
            else:
                lost.update(change)
        directory = _Directory()
        directory.entries = {name: node.after_cut(choices) for name, node in entries.items()}
        directory.durable = dict(directory.entries)
        return directory


_Node = _File | _Directory


class _CutChoices:
    """The random choices of one power cut."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._all, self._none = self._rng.choice(SURVIVAL_ODDS)

    def moment(self, changes: int) -> int:
        """Return how many of `changes` successive changes survive: all, none, or any number."""
        drawn = self._rng.random()
        if drawn < self._all:
            return changes
        return 0 if drawn < self._all + self._none else self._rng.randint(0, changes)

    def tears(self) -> bool:
        return self._rng.random() < TORN_SHARE


def _is_cut(change: _Write | _Resize) -> bool:
    return isinstance(change, _Resize) and change.shrinks


def _apply(entries: dict[str, _Node], change: dict[str, _Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
