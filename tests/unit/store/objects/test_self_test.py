"""Proves that the self-test trusts every store that creates once, with any faults, and refuses those that do not."""

import asyncio

import pytest

from duolog.store.objects.errors import ObjectStoreError, StoreRefused, StoreRetry
from duolog.store.objects.interface import Content, Creation
from duolog.store.objects.self_test import FOLDER, RACERS, check_creates
from tests.kit.clock import ManualClock
from tests.kit.loop import run
from tests.kit.object_store import SimulatedBucket, SimulatedObjects, StoreFaults
from tests.kit.rows import first_in_unit

FAULTY = StoreFaults(conflict=0.1, busy=0.1, lost_request=0.05, lost_answer=0.1, repeated=0.1, stale_list=0.5)


@pytest.mark.parametrize("seed", first_in_unit(range(40), 10))
def test_a_store_that_creates_once_is_trusted_whatever_fails(seed: int) -> None:
    bucket = SimulatedBucket(seed)

    run(check_creates(bucket.client("a", FAULTY), "run"), ManualClock())
    assert any(each.outcome == "created" for each in bucket.history)


@pytest.mark.parametrize("seed", range(10))
def test_a_store_that_creates_twice_is_refused(seed: int) -> None:
    bucket = SimulatedBucket(seed, is_lying=True)
    with pytest.raises(StoreRefused, match=r"two brokers could write at a time: use a store"):
        run(check_creates(bucket.client("a"), "run"), ManualClock())


def test_a_store_that_answers_no_create_is_neither_trusted_nor_refused() -> None:
    """The object need not exist then, so a create that is answered later tells nothing."""

    class LosesTheRace(SimulatedObjects):
        count = 0

        async def create(self, key: str, content: Content) -> Creation:
            self.count += 1
            self.faults.lost_request = 1.0 if self.count <= RACERS else 0.0
            return await super().create(key, content)

    with pytest.raises(StoreRetry, match="none of 8 creates was answered"):
        run(check_creates(LosesTheRace(SimulatedBucket(1), "a", StoreFaults()), "run"), ManualClock())


def test_the_object_of_the_test_is_removed() -> None:
    bucket = SimulatedBucket(1)
    run(check_creates(bucket.client("a"), "run"), ManualClock())
    assert bucket.objects == {}
    assert bucket.history[0].key == f"{FOLDER}run/0"


class NobodyWins(SimulatedObjects):
    async def create(self, key: str, content: Content) -> Creation:
        await super().create(key, content)
        return Creation.EXISTS


class ForgetsObjects(SimulatedObjects):
    async def get(self, key: str, bytes_max: int) -> bytes | None:
        return None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(NobodyWins, "no create of the object succeeded"), (ForgetsObjects, "cannot be read")],
    ids=["nobody", "forgets"],
)
def test_a_store_that_contradicts_itself_is_refused(kind: type[SimulatedObjects], reason: str) -> None:
    objects = kind(SimulatedBucket(1), "a", StoreFaults())
    with pytest.raises(StoreRefused, match=reason):
        run(check_creates(objects, "run"), ManualClock())


# -- The simulated store itself


@pytest.mark.parametrize("seed", range(20))
def test_a_simulated_store_creates_once_and_tells_the_truth_about_it(seed: int) -> None:
    """A create that is answered by CREATED is the object's; one that is answered by a retry has changed nothing."""
    bucket = SimulatedBucket(seed)
    clients = [bucket.client(f"client-{number}", FAULTY) for number in range(4)]
    reported: dict[str, list[str]] = {}

    async def write(name: str, client: SimulatedObjects) -> None:
        for slot in range(20):
            try:
                outcome = (await client.create(f"wal/{slot}", f"{name} {slot}".encode())).value
            except ObjectStoreError as error:
                outcome = type(error).__name__
            reported.setdefault(f"wal/{slot}", []).append(f"{name} {outcome}")

    async def main() -> None:
        await asyncio.gather(*(write(f"client-{number}", client) for number, client in enumerate(clients)))

    run(main(), ManualClock())
    for key, content in bucket.objects.items():
        writer = content.decode().split()[0]
        assert [each for each in reported[key] if each.endswith(" created")] in ([], [f"{writer} created"])
        assert f"{writer} StoreRetry" not in reported[key]


def test_a_client_that_is_cut_off_gets_no_answer_and_changes_nothing() -> None:
    bucket = SimulatedBucket(1)
    client = bucket.client("a", StoreFaults(is_cut=True))
    clock = ManualClock()

    async def main() -> None:
        with pytest.raises(ObjectStoreError, match="no answer"):
            await client.create("a", b"")
        with pytest.raises(StoreRetry, match="no answer"):
            await client.get("a", 1)

    begun_ms = clock.mono_ms()
    run(main(), clock)
    assert (bucket.objects, clock.mono_ms() - begun_ms) == ({}, 10_000)


def test_a_late_request_is_done_after_its_client_gave_up() -> None:
    bucket = SimulatedBucket(1)
    client = bucket.client("a", StoreFaults(late_request=1.0))

    async def main() -> bytes | None:
        with pytest.raises(ObjectStoreError, match="no answer"):
            await client.create("a", b"late")
        before = bucket.objects.get("a")
        await asyncio.sleep(10)
        return before

    assert run(main(), ManualClock()) is None
    assert bucket.objects == {"a": b"late"}


def test_a_stale_list_is_one_that_was_true() -> None:
    bucket = SimulatedBucket(3)
    client = bucket.client("a", StoreFaults(stale_list=1.0, stale_ms=1_000))

    async def main() -> set[tuple[str, ...]]:
        await client.create("a", b"")
        await asyncio.sleep(1)
        await client.create("b", b"")
        await client.delete(["a"])
        return {tuple(each.key for each in await client.list("")) for _ in range(20)}

    assert run(main(), ManualClock()) <= {("a",), ("a", "b"), ("b",)}
    assert [each.key for each in bucket.entries()] == ["b"]
