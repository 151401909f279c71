"""/api/leases over the port of a whole core: the files in a plan, the tokens that may change a lease, the cost."""

import asyncio
from pathlib import Path

import pytest

from duolog.bridge.config import HttpOptions, LeasesOptions, Options
from duolog.store.log.format import POSITION_MAX
from tests.kit.core import ManualCore
from tests.kit.http import HEADERS, HttpBench, HttpDialogue, encoded

MINE, OTHERS = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer others"}


def bench_with(topics: int = 1, options: Options | None = None) -> HttpBench:
    core = ManualCore(options)
    for number in range(topics):
        core.publish(core.topic(f"orders{number}", 2), b"a", b"b")
    return HttpBench(core)


def test_plan_names_what_is_visible_and_holds_its_files() -> None:
    bench = bench_with(2)
    status, plan = bench.ask("POST", "/api/leases", {"topics": ["orders0"], "lease_ms": 1000})
    (queue,) = plan["queues"]
    topic = bench.core.topics.get("orders0")
    assert topic is not None
    assert (status, plan["lease_ms"], queue["topic"], queue["key"]) == (201, 1000, "orders0", topic.key(0))
    assert (queue["start"], queue["end"], queue["aborted"]) == (0, 2, [])
    assert plan["segments"] == [{"start": 0, "end": bench.core.store.written, "path": f"log/{0:020}.log"}]
    assert bench.core.store.retention.dead_segments.held_from == 0
    lease = f"/api/leases/{plan['lease']}"
    assert bench.ask("POST", lease) == (200, {"lease": plan["lease"], "lease_ms": 1000})
    assert bench.ask("DELETE", lease) == (200, {"released": plan["lease"]})
    assert bench.core.store.retention.dead_segments.held_from == POSITION_MAX
    assert bench.ask("DELETE", lease)[0] == bench.ask("POST", lease)[0] == 410


def test_lease_of_no_stated_length_is_as_long_as_the_broker_allows() -> None:
    for lease_ms_max, expected in ((3_600_000, 600_000), (30_000, 30_000)):
        bench = bench_with(1, Options(leases=LeasesOptions(lease_ms_max=lease_ms_max)))
        status, plan = bench.ask("POST", "/api/leases", {"topics": ["orders0"]})
        assert (status, plan["lease_ms"]) == (201, expected)


def test_names_that_repeat_count_once() -> None:
    bench = bench_with(2)
    once = bench.ask("POST", "/api/leases", {"topics": ["orders0", "orders1"]})[1]
    often = bench.ask("POST", "/api/leases", {"topics": ["orders0", "orders1"] * 200})[1]
    assert often["queues"] == once["queues"]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"topics": ["none"]}, 404, "there is no topic none"),
        ({"topics": [], "lease_ms": 0}, 400, "expected 1 to leases.lease_ms_max=3600000, got 0"),
        ({"topics": [], "lease_ms": 3_600_001}, 400, "got 3600001"),
        ({"topics": "orders0"}, 400, "$.topics"),
    ],
)
def test_bad_lease_is_refused(body: object, status: int, says: str) -> None:
    bench = bench_with()
    found, answer = bench.ask("POST", "/api/leases", body)
    assert found == status
    assert says in answer["error"]
    assert len(bench.core.leases) == 0


def test_lease_belongs_to_those_who_may_read_its_topics(tmp_path: Path) -> None:
    readers = tmp_path / "readers.toml"
    readers.write_text('mine = ["orders0"]\nothers = ["orders1"]\n')
    bench = bench_with(2, Options(http=HttpOptions(readers_file=str(readers))))
    status, plan = bench.ask("POST", "/api/leases", {"topics": ["orders0"]}, MINE)
    lease = f"/api/leases/{plan['lease']}"
    for method in ("POST", "DELETE"):
        assert bench.ask(method, lease)[0] == 401
        assert bench.ask(method, lease, None, OTHERS)[0] == 403
        assert bench.ask(method, "/api/leases/1")[0] == 401
        assert bench.ask(method, "/api/leases/1", None, MINE)[0] == 410
    assert bench.ask("POST", lease, None, MINE)[0] == bench.ask("DELETE", lease, None, MINE)[0] == 200
    assert status == 201


def test_one_client_does_not_take_all_places() -> None:
    bench = bench_with(1, Options(leases=LeasesOptions(per_address_max=2)))
    found = [bench.ask("POST", "/api/leases", {"topics": ["orders0"]})[0] for _ in range(3)]
    assert found == [201, 201, 503]


def test_lease_whose_plan_is_not_taken_ends() -> None:
    bench = bench_with(20)

    async def leave() -> None:
        port = bench.port()
        await port.start()
        dialogue = HttpDialogue(bench.core, port)
        dialogue.transport.room = 100
        names = [f"orders{number}" for number in range(20)] * 2
        body = b'{"topics": [%s]}' % b", ".join(b'"%b"' % name.encode() for name in names)
        dialogue.send(encoded("POST", "/api/leases", body, HEADERS))
        await dialogue.turn(20)
        assert (len(bench.core.leases), bench.core.store.retention.dead_segments.held_from) == (1, 0)
        await dialogue.close()
        assert len(bench.core.leases) == 0
        await port.stop()

    asyncio.run(leave())
