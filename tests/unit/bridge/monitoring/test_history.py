"""Figures of the last hour: rates and lateness between samples, rates of topics in slices, the last log lines; each is
bounded."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from duolog.bridge.monitoring import history, last_lines, topic_rates
from duolog.bridge.monitoring.history import History
from duolog.bridge.monitoring.last_lines import LogLine, keep
from duolog.bridge.monitoring.logs import KeepingHandler
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.topic_rates import TopicRates
from duolog.bridge.monitoring.watchdog import Watchdog


def test_an_interval_has_what_happened_between_two_samples() -> None:
    metrics, watchdog = Metrics(), Watchdog()
    figures = History(metrics, watchdog)
    assert figures.next_deadline_ms() == 0
    metrics.records_in["kafka"] = 7
    metrics.timer_lateness_s.add(60.0)
    figures.sample(1_000, 100_000)
    assert figures.next_deadline_ms() == 11_000
    metrics.records_in["kafka"] += 50
    metrics.bytes_out["rocketmq"] += 1_000
    metrics.timer_lateness_s.add_all([0.0005] * 99)
    metrics.timer_lateness_s.add(0.3)
    metrics.fsync_s.add_all([0.002, 0.004])
    metrics.dead_letters += 2
    figures.sample(11_000, 110_000)
    (found,) = figures.intervals()
    assert found.at_ms == 110_000
    assert found.records_in == {"kafka": 5.0, "rocketmq": 0.0, "http": 0.0}
    assert found.bytes_out == {"kafka": 0.0, "rocketmq": 100.0, "http": 0.0}
    assert (found.delivered, found.late_p50_ms, found.late_p99_ms) == (100, 1.0, 1.0)
    assert (found.fsync_ms, found.dead_letters, found.given_up) == (3.0, 2, 0)
    figures.sample(21_000, 120_000)
    idle = figures.intervals()[-1]
    assert (idle.delivered, idle.late_p99_ms, idle.fsync_ms) == (0, None, None)


@pytest.mark.parametrize(("late_s", "shown_ms"), [([0.3] * 2 + [0.0] * 98, 500.0), ([7200.0], 3_600_000.0)])
def test_the_quantile_is_a_bound_of_the_histogram(late_s: list[float], shown_ms: float) -> None:
    metrics = Metrics()
    figures = History(metrics, Watchdog())
    figures.sample(0, 0)
    metrics.timer_lateness_s.add_all(late_s)
    figures.sample(10_000, 10_000)
    assert figures.intervals()[0].late_p99_ms == shown_ms


def test_only_the_last_hour_is_kept() -> None:
    figures = History(Metrics(), Watchdog())
    for number in range(history.INTERVALS_MAX + 10):
        figures.sample(number * 10_000, number * 10_000)
    found = figures.intervals()
    assert len(found) == history.INTERVALS_MAX
    assert found[-1].at_ms - found[0].at_ms == 3_600_000 - 10_000


def topic(number: int, *ends: int) -> Any:
    return SimpleNamespace(number=number, queues=[SimpleNamespace(visible_end=end) for end in ends])


def test_the_rate_of_a_topic_is_that_of_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_rates, "QUEUES_IN_SLICE", 2)
    topics = [topic(1, 10, 0), topic(2, 5), topic(3, 0)]
    rates = TopicRates(lambda: topics)
    assert rates.per_second(1) is None
    run_round(rates, 0)
    assert rates.per_second(1) is None  # It was counted once.
    topics[0].queues[1].visible_end = 90
    del topics[2]
    assert rates.next_deadline_ms() == 10_000
    assert run_round(rates, 10_000) > 1, "the round is cut into slices"
    assert (rates.per_second(1), rates.per_second(2), rates.per_second(3)) == (9.0, 0.0, None)


def run_round(rates: TopicRates, mono_ms: int) -> int:
    slices = 0
    while rates.next_deadline_ms() <= mono_ms:
        rates.run(mono_ms)
        slices += 1
    return slices


def test_topics_beyond_the_limit_have_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_rates, "TOPICS_MAX", 1)
    rates = TopicRates(lambda: [topic(1, 0), topic(2, 0)])
    run_round(rates, 0)
    run_round(rates, 10_000)
    assert (rates.per_second(1), rates.per_second(2)) == (0.0, None)


def test_the_last_lines_are_kept_as_they_are_written() -> None:
    last_lines._LINES.clear()
    with open("/dev/null", "w", encoding="utf-8") as sink:
        handler = KeepingHandler(sink)
        record = logging.LogRecord("net", logging.WARNING, "", 0, "gone peer=%s", ("a\nb",), None)
        record.created = 5.0
        handler.handle(record)
    assert last_lines.last_lines() == [LogLine(5000, "warning", "net", "gone peer='a\\nb'")]


def test_the_number_and_the_length_of_lines_are_limited() -> None:
    for number in range(last_lines.LINES_MAX + 1):
        keep(LogLine(number, "info", "net", "x" * (last_lines.LINE_CHARACTERS_MAX + 1)))
    found = last_lines.last_lines()
    assert (len(found), found[0].at_ms, len(found[0].text)) == (
        last_lines.LINES_MAX,
        1,
        last_lines.LINE_CHARACTERS_MAX,
    )
    last_lines._LINES.clear()
