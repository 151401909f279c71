"""An object store in memory with faults by chance, from one seed, in the time of the running event loop.

    bucket = SimulatedBucket(seed)
    owner, standby = bucket.client("owner"), bucket.client("standby")     # each is an ObjectStore
    owner.faults.lost_answer = 0.05
    standby.faults.is_cut = True                                          # until it is False again
    run(main(owner, standby), clock)                                      # tests/kit/loop.py: virtual time

A request takes half of its latency to the bucket and half back. In the bucket it takes effect at one moment. `history`
has every effect and every answer in their order, for checkers. Reads of one object are never stale, and lists are stale
only by `stale_list`, as S3, Google and Azure promise the first and older stores do not keep the second.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from duolog.store.objects.errors import StoreRefused, StoreRetry, StoreUnknown
from duolog.store.objects.interface import LIST_LIMIT, Content, Creation, ObjectEntry

T = TypeVar("T")


@dataclass
class StoreFaults:
    """What goes wrong for one client; a test may change it at any time. Chances are from 0 to 1, of each request."""

    latency_ms: tuple[float, float] = (2.0, 8.0)  # Least and greatest, of a request and its answer together
    timeout_ms: float = 5_000
    conflict: float = 0.0  # 409: nothing was done
    busy: float = 0.0  # 503: nothing was done
    lost_request: float = 0.0  # Nothing was done, and no answer comes.
    lost_answer: float = 0.0  # The request was done, and no answer comes.
    late_request: float = 0.0  # No answer comes, and the request is done `late_ms` after its time-out at most.
    late_ms: float = 10_000
    repeated: float = 0.0  # The request is done twice, and the second answer comes.
    stale_list: float = 0.0  # The list is `stale_ms` old at most.
    stale_ms: float = 3_000
    is_cut: bool = False  # No request arrives, and no answer comes back.


class StoreEvent(NamedTuple):
    """An effect in the bucket, or the answer that a client got."""

    at_s: float
    client: str
    kind: str  # "effect" or "answer"
    operation: str
    key: str
    outcome: str


class _Removed(NamedTuple):
    entry: ObjectEntry
    from_s: float
    until_s: float


class SimulatedBucket:
    """The objects, and the history of all clients. `is_lying` makes every create succeed and replace the object.

    A test may change or remove the contents in `objects`, as an operator or another program might.
    """

    def __init__(self, seed: int, *, is_lying: bool = False) -> None:
        self.random = random.Random(seed)
        self.is_lying = is_lying
        self.objects: dict[str, bytes] = {}
        self.history: list[StoreEvent] = []
        self._created_s: dict[str, float] = {}
        self._removed: list[_Removed] = []

    def client(self, name: str, faults: StoreFaults | None = None) -> SimulatedObjects:
        return SimulatedObjects(self, name, faults or StoreFaults())

    # -- Effects, each at one moment

    def create(self, key: str, content: bytes, now_s: float) -> Creation:
        if key in self.objects and not self.is_lying:
            return Creation.EXISTS
        self.objects[key], self._created_s[key] = content, now_s
        return Creation.CREATED

    def delete(self, keys: Sequence[str], now_s: float) -> None:
        for key in keys:
            content = self.objects.pop(key, None)
            if content is not None:
                self._removed.append(_Removed(ObjectEntry(key, len(content)), self._created_s.pop(key, 0.0), now_s))

    def entries(self) -> list[ObjectEntry]:
        """Return the objects in the order of their keys."""
        return sorted(ObjectEntry(key, len(content)) for key, content in self.objects.items())

    def entries_at(self, at_s: float) -> list[ObjectEntry]:
        """Return the objects that existed at this time, in the order of their keys."""
        existing = [each for each in self.entries() if self._created_s.get(each.key, 0.0) <= at_s]
        return sorted(existing + [each.entry for each in self._removed if each.from_s <= at_s < each.until_s])


class SimulatedObjects:
    """One client's way to the bucket: an ObjectStore."""

    def __init__(self, bucket: SimulatedBucket, name: str, faults: StoreFaults) -> None:
        self.faults = faults
        self._bucket, self._name = bucket, name
        self._random = bucket.random

    async def create(self, key: str, content: Content) -> Creation:
        data = b"".join(content) if isinstance(content, tuple) else bytes(content)

        def effect(now_s: float) -> Creation:
            return self._bucket.create(key, data, now_s)

        created = await self._request("create", key, effect)
        self._note("answer", "create", key, created.value)
        return created

    async def get(self, key: str, bytes_max: int) -> bytes | None:
        content = await self._request("get", key, lambda _: self._bucket.objects.get(key))
        if content is not None and len(content) > bytes_max:
            raise StoreRefused(f"read {key}: the object has {len(content)} bytes, more than {bytes_max}")
        return content

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        content = await self._request("get", key, lambda _: self._bucket.objects.get(key))
        return None if content is None else content[start : start + length]

    async def list(self, prefix: str, start_after: str = "", limit: int = LIST_LIMIT) -> Sequence[ObjectEntry]:
        def effect(now_s: float) -> list[ObjectEntry]:
            if self._happens(self.faults.stale_list):
                entries = self._bucket.entries_at(now_s - self._random.uniform(0, self.faults.stale_ms) / 1000)
            else:
                entries = self._bucket.entries()
            return [each for each in entries if each.key.startswith(prefix) and each.key > start_after][:limit]

        return await self._request("list", prefix, effect)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._request("delete", ",".join(keys), lambda now_s: self._bucket.delete(keys, now_s))

    # -- The way of a request

    async def _request(self, operation: str, key: str, effect: Callable[[float], T]) -> T:
        faults, now_s = self.faults, asyncio.get_running_loop().time
        ends_s = now_s() + faults.timeout_ms / 1000
        half_s = self._random.uniform(*faults.latency_ms) / 2000
        await asyncio.sleep(min(half_s, faults.timeout_ms / 1000))
        if self._happens(faults.busy):
            raise self._failed(StoreRetry, operation, key, "503 SlowDown")
        if self._happens(faults.conflict):
            raise self._failed(StoreRetry, operation, key, "409 ConditionalRequestConflict")
        if faults.is_cut or half_s * 1000 >= faults.timeout_ms or self._happens(faults.lost_request):
            await self._no_answer(operation, key, ends_s)
        if self._happens(faults.late_request):
            late_s = ends_s - now_s() + self._random.uniform(0, faults.late_ms) / 1000
            asyncio.get_running_loop().call_later(late_s, self._take_effect, operation, key, effect)
            await self._no_answer(operation, key, ends_s)
        found = self._take_effect(operation, key, effect)
        if self._happens(faults.repeated):
            found = self._take_effect(operation, key, effect)
        is_lost = self._happens(faults.lost_answer)
        await asyncio.sleep(min(half_s, max(0.0, ends_s - now_s())))
        if is_lost or faults.is_cut or now_s() >= ends_s:
            await self._no_answer(operation, key, ends_s)
        return found

    def _take_effect(self, operation: str, key: str, effect: Callable[[float], T]) -> T:
        found = effect(asyncio.get_running_loop().time())
        outcome = found.value if isinstance(found, Creation) else "missing" if found is None else "ok"
        self._note("effect", operation, key, outcome)
        return found

    async def _no_answer(self, operation: str, key: str, ends_s: float) -> None:
        await asyncio.sleep(max(0.0, ends_s - asyncio.get_running_loop().time()))
        error = StoreUnknown if operation == "create" else StoreRetry
        raise self._failed(error, operation, key, "no answer")

    def _failed(
        self, error: type[StoreRetry | StoreUnknown], operation: str, key: str, reason: str
    ) -> StoreRetry | StoreUnknown:
        self._note("answer", operation, key, reason)
        return error(f"{operation} {key}: {reason}")

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._random.random() < chance

    def _note(self, kind: str, operation: str, key: str, outcome: str) -> None:
        now_s = asyncio.get_running_loop().time()
        self._bucket.history.append(StoreEvent(now_s, self._name, kind, operation, key, outcome))
