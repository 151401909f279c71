"""Tests at the first use of a bucket, and at a takeover, that a store creates an object once.

The log of a stream relies on this alone: if several brokers create the same key, exactly one of these requests
succeeds, and all brokers read its content.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from duolog.store.objects.errors import StoreRetry, StoreUnknown, UnreliableStore
from duolog.store.objects.interface import Creation, ObjectStore

RACERS = 8
# A round has no winner if the answer to the winner was lost, or if the network repeated its request, which may happen
# several times in a row where that is frequent.
ROUNDS_MAX = 20
ATTEMPTS_MAX = 10  # The number of attempts of one request while the store answers that it is busy.
FOLDER = "self-test/"

T = TypeVar("T")
Outcomes = Sequence[tuple[bytes, Creation | None]]  # The content of each create, and its outcome; None if unknown.


async def check_creates(objects: ObjectStore, name: str, wait_s: float = 0.1) -> None:
    """Let several creates race for a key below `self-test/<name>`, which must be unused, and remove the object.

    `wait_s` is the time between two attempts of a request. Raises UnreliableStore if a create of an existing object
    succeeds, if another content is read than the winner's, or if no race has a winner. Raises StoreRetry if the store
    answers too seldom to be tested.
    """
    for number in range(ROUNDS_MAX):
        is_won = await _race(objects, f"{FOLDER}{name}/{number}", wait_s)
        if is_won:
            return
        if is_won is None:
            raise StoreRetry(f"{FOLDER}{name}/{number}: none of {RACERS} creates was answered")
    raise _refused(f"{FOLDER}{name}", "no create of the object succeeded")


async def _race(objects: ObjectStore, key: str, wait_s: float) -> bool | None:
    """Return whether exactly one create won; None if no create was answered, so that there may be no object.

    Raises UnreliableStore if the outcomes contradict each other.
    """
    contents = [f"{key} {number}".encode() for number in range(RACERS)]
    created = await asyncio.gather(*(_create(objects, key, each, wait_s) for each in contents))
    if all(outcome is None for outcome in created):
        return None
    found = await _persist(lambda: objects.get(key, len(key) + 16), wait_s)
    late = await _create(objects, key, b"late", wait_s)
    await _persist(lambda: objects.delete([key]), wait_s)
    return _is_won(key, list(zip(contents, created, strict=True)), found, late)


def _is_won(key: str, outcomes: Outcomes, found: bytes | None, late: Creation | None) -> bool:
    winners = [content for content, created in outcomes if created is Creation.CREATED]
    if len(winners) > 1:
        raise _refused(key, f"{len(winners)} of {len(outcomes)} creates of the object succeeded")
    if late is Creation.CREATED:
        raise _refused(key, "an object that exists was created a second time")
    if found is None:
        raise _refused(key, "an object that exists cannot be read")
    if found not in (winners or [content for content, _ in outcomes]):
        raise _refused(key, "the object has another content than its creator wrote")
    return len(winners) == 1


def _refused(key: str, found: str) -> UnreliableStore:
    return UnreliableStore(
        f"the object store has no create-if-absent that can be relied on ({key}: {found}), so two brokers could write "
        "at a time: use a store, or a version of it, that takes If-None-Match: * on PutObject"
    )


async def _create(objects: ObjectStore, key: str, content: bytes, wait_s: float) -> Creation | None:
    """Create the object. Return None if the outcome is unknown."""
    try:
        return await _persist(lambda: objects.create(key, content), wait_s)
    except StoreUnknown:
        return None


async def _persist(request: Callable[[], Awaitable[T]], wait_s: float) -> T:
    """Send the request again while the store is busy. Raises StoreRetry after the last attempt."""
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return await request()
        except StoreRetry:
            await asyncio.sleep(wait_s)
    return await request()
