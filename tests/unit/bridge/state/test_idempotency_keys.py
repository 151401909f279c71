"""POST /api/timers that is sent again makes one timer, over restarts and checkpoints as well; keys are bounded."""

from typing import Any

import pytest

from duolog.bridge.config import HttpOptions, Options
from duolog.bridge.state.idempotency_keys import ROWS_IN_RECORD
from duolog.store.entry import EntrySlot
from tests.kit.core import ManualCore
from tests.kit.http import HttpBench

BODY = {"topic": "orders", "key": "k", "value": "v", "delay_ms": 60_000}
LIFE_MS = 5_000
OPTIONS = Options(http=HttpOptions(request_keys_max=3, request_key_ms=LIFE_MS))


def bench_with_topic(options: Options | None = None) -> HttpBench:
    bench = HttpBench(ManualCore(options))
    bench.core.topic("orders", 2)
    return bench


def post(bench: HttpBench, key: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    return bench.ask("POST", "/api/timers", body or BODY, {"Idempotency-Key": key})


def restarted(bench: HttpBench, *, is_killed: bool = False) -> HttpBench:
    core = bench.core
    if not is_killed:
        core.store.close(core.clock.now_ms())
    disk = core.disk.after_kill() if is_killed else core.disk
    return HttpBench(ManualCore(core.options, disk, now_ms=core.clock.now_ms()))


def test_request_that_is_sent_again_is_answered_the_same() -> None:
    bench = bench_with_topic()
    status, first = post(bench, "one")
    assert (status, bench.ask("GET", f"/api/timers/{first['id']}")[1]["value"]) == (201, "v")
    position = bench.core.store.next_position
    bench.core.clock.pass_ms(1000)
    assert post(bench, "one") == (201, first)
    assert bench.core.store.next_position == position
    assert post(bench, "two")[1]["id"] != first["id"]
    assert bench.ask("POST", "/api/timers", BODY)[1]["id"] != first["id"]
    assert len(bench.core.delays.timers) == 3


def test_key_with_another_body_is_422_and_changes_nothing() -> None:
    bench = bench_with_topic()
    post(bench, "one")
    status, answer = post(bench, "one", BODY | {"value": "w"})
    assert (status, answer) == (422, {"error": "Idempotency-Key: it was sent before with another body"})
    assert len(bench.core.delays.timers) == 1


def test_request_that_was_refused_may_be_sent_again_corrected() -> None:
    bench = bench_with_topic()
    assert post(bench, "one", BODY | {"topic": "none"})[0] == 404
    assert post(bench, "one")[0] == 201


def test_keys_outlive_restarts_checkpoints_and_the_timer() -> None:
    bench = bench_with_topic()
    replaced = BODY | {"replace": True, "headers": {"a": "b"}}
    first = post(bench, "one")[1]
    second = post(bench, "two", replaced)[1]  # The unit cancels the first one, too.
    for is_killed in (True, False, True):
        bench = restarted(bench, is_killed=is_killed)
        assert post(bench, "one") == (201, first)
        assert post(bench, "two", replaced) == (201, second)
        assert bench.ask("GET", f"/api/timers/{second['id']}")[0] == 200
        assert len(bench.core.delays.timers) == 1
    assert bench.ask("DELETE", f"/api/timers/{second['id']}")[1] == {"outcome": "cancelled"}
    bench.ask("DELETE", "/api/topics/orders")
    assert post(restarted(bench), "two", replaced) == (201, second)


def test_snapshot_of_many_keys_gives_the_same_table() -> None:
    bench = bench_with_topic()
    keys = bench.core.idempotency_keys
    for number in range(ROWS_IN_RECORD // 500 + 1):
        post(bench, f"k{number}")
    before = dict(keys._answered)
    other = ManualCore().idempotency_keys
    for record in keys._snapshot():
        other._replay_known(record, EntrySlot(0, 0, 0))
    assert dict(other._answered) == before


def test_table_is_bounded_and_keys_are_forgotten_in_time() -> None:
    bench = bench_with_topic(OPTIONS)
    for number in range(3):
        assert post(bench, f"k{number}")[0] == 201
        bench.core.clock.pass_ms(1000)
    status, answer = post(bench, "k3")
    assert status == 503
    assert "http.request_keys_max=3" in answer["error"]
    assert post(bench, "k0")[0] == 201, "what is known is answered"
    bench.core.clock.pass_ms(LIFE_MS - 3000)
    assert post(bench, "k3")[0] == 201
    assert len(bench.core.idempotency_keys) == 3
    assert len(bench.core.delays.timers) == 4
    bench.core.clock.pass_ms(LIFE_MS)
    assert post(bench, "k0")[0] == 201
    assert len(bench.core.delays.timers) == 5, "after its time a key is new"


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_bad_key_is_refused(key: str) -> None:
    bench = bench_with_topic()
    assert bench.ask("POST", "/api/timers", BODY, {"Idempotency-Key": key or " "})[0] == 400


def test_where_no_key_is_taken_it_is_refused() -> None:
    bench = bench_with_topic()
    assert bench.ask("POST", "/api/topics/orders/messages", {"value": "x"}, {"Idempotency-Key": "k"})[0] == 400
