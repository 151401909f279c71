"""Schedules on days with clock changes: tables of runs, and a comparison with a check of each minute of such days."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog.delay.recurring import (
    AMQ_CRON,
    AMQ_DELAY,
    AMQ_PERIOD,
    AMQ_REPEAT,
    MISSED_AFTER_MS,
    BadSchedule,
    Burst,
    Cron,
    Every,
    Missed,
    Run,
    Schedule,
    Step,
    activemq,
)

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


# expression, zone, after, the runs that follow
CRONS = [
    ("*/20 30 9 * * *", "UTC", "2026-03-01T08:00:00Z", ["2026-03-01T09:30:00Z", "2026-03-01T09:30:20Z"]),
    ("0 9 * * MON", BERLIN, "2026-03-01T00:00:00Z", ["2026-03-02T09:00:00+01:00", "2026-03-09T09:00:00+01:00"]),
    ("0 0 29 2 *", "UTC", "2026-03-01T00:00:00Z", ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
    # A time of day over the gap, and over the hour that comes twice.
    ("30 2 * * *", BERLIN, "2026-03-28T12:00:00Z", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
    ("0,30 2 * * *", BERLIN, "2026-03-28T12:00:00Z", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"]),
    ("30 2 * * *", BERLIN, "2026-10-24T12:00:00Z", ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
    ("30 2 * * *", BERLIN, "2026-10-25T01:10:00Z", ["2026-10-26T02:30:00+01:00"]),
    ("15 2 * * *", NEW_YORK, "2026-03-07T12:00:00Z", ["2026-03-08T03:00:00-04:00", "2026-03-09T02:15:00-04:00"]),
    ("15 1 * * *", NEW_YORK, "2026-10-31T12:00:00Z", ["2026-11-01T01:15:00-04:00", "2026-11-02T01:15:00-05:00"]),
    ("15 2 * * *", LORD_HOWE, "2026-10-03T00:00:00Z", ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"]),
    ("45 1 * * *", LORD_HOWE, "2026-04-04T00:00:00Z", ["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"]),
    ("0 12 30 * *", "Pacific/Apia", "2011-12-29T00:00:00Z", ["2011-12-31T00:00:00+14:00", "2012-01-30T12:00:00+14:00"]),
    # All day long: nothing in the gap, twice what comes twice.
    ("30 * * * *", BERLIN, "2026-03-29T00:00:00Z", ["2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"]),
    ("30 * * * *", BERLIN, "2026-10-25T00:00:00Z", ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]),
    ("45 * * * *", LORD_HOWE, "2026-04-04T14:00:00Z", ["2026-04-05T01:45:00+11:00", "2026-04-05T01:45:00+10:30"]),
    ("10 * * * *", LORD_HOWE, "2026-10-03T15:00:00Z", ["2026-10-04T03:10:00+11:00"]),
    # By name, as in crontab(5).
    ("@hourly", BERLIN, "2026-01-01T00:30:00Z", ["2026-01-01T02:00:00+01:00", "2026-01-01T03:00:00+01:00"]),
    ("@daily", BERLIN, "2026-01-01T00:30:00Z", ["2026-01-02T00:00:00+01:00"]),
    ("@weekly", "UTC", "2026-01-01T00:30:00Z", ["2026-01-04T00:00:00+00:00"]),
    ("@Monthly", "UTC", "2026-01-01T00:30:00Z", ["2026-02-01T00:00:00+00:00"]),
    ("@yearly", "UTC", "2026-01-01T00:30:00Z", ["2027-01-01T00:00:00+00:00"]),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "zone", "after", "expected"), CRONS)
def test_cron_runs(expression: str, zone: str, after: str, expected: list[str]) -> None:
    cron, at_ms = Cron(expression, zone), ms(after)
    for run in expected:
        at_ms = cron.next_ms(at_ms)
        assert at_ms == ms(run), f"{datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone))}"


changes = st.sampled_from(
    [(BERLIN, 2026, 3, 29), (BERLIN, 2026, 10, 25), (NEW_YORK, 2026, 11, 1), (LORD_HOWE, 2026, 4, 5),
     (LORD_HOWE, 2026, 10, 4), ("Africa/Casablanca", 2026, 2, 15), ("America/Sao_Paulo", 2018, 11, 4)]
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=20)
@given(changes, st.integers(1, 20), st.sets(st.integers(0, 59), min_size=1, max_size=3), st.booleans())
def test_what_recurs_all_day_comes_at_every_minute_that_a_clock_on_the_wall_shows(
    change: tuple[str, int, int, int], hour_step: int, minutes: set[int], each_minute: bool
) -> None:
    zone, *day = change
    noon = datetime(*day, 12, tzinfo=UTC) - timedelta(days=1)
    moments = [noon + timedelta(minutes=number) for number in range(24 * 60)]
    if each_minute:
        cron = Cron("* 0-3 * * *", zone)
        expected = [moment for moment in moments if moment.astimezone(ZoneInfo(zone)).hour <= 3]
    else:
        cron = Cron(f"{','.join(map(str, minutes))} */{hour_step} * * *", zone)
        expected = [
            moment for moment in moments
            if (local := moment.astimezone(ZoneInfo(zone))).minute in minutes and not local.hour % hour_step
        ]  # fmt: skip
    found = []
    at_ms = int(noon.timestamp()) * 1000 - 1
    while (at_ms := cron.next_ms(at_ms)) <= int(moments[-1].timestamp()) * 1000:
        found.append(datetime.fromtimestamp(at_ms // 1000, UTC))
    assert found == expected


# -- Steps

TEN_S = Every(10_000)
DAILY = Cron("0 9 * * *", BERLIN)
NINE = ms("2026-03-28T09:00:00+01:00")
NINE_LATER = ms("2026-03-31T09:00:00+02:00")
LATE = MISSED_AFTER_MS

# schedule, the run that is due, now, what to do
STEPS = [
    (Schedule(TEN_S), Run(1, 50_000), 50_003, Step(Run(1, 50_000), Run(2, 60_000))),
    (Schedule(TEN_S, missed=Missed.ALL), Run(1, 50_000), 99_000, Step(Run(1, 50_000), Run(2, 60_000))),
    (Schedule(TEN_S, missed=Missed.ONCE), Run(1, 50_000), 99_000, Step(Run(1, 90_000), Run(2, 100_000))),
    (Schedule(TEN_S, missed=Missed.SKIP), Run(1, 50_000), 99_000, Step(Run(1, 90_000), Run(2, 100_000))),
    (Schedule(DAILY, missed=Missed.ALL), Run(1, NINE), NINE_LATER, Step(Run(1, NINE), Run(2, NINE + 23 * 3_600_000))),
    (Schedule(DAILY), Run(1, NINE), NINE_LATER + LATE, Step(Run(1, NINE_LATER), Run(2, NINE_LATER + 86_400_000))),
    (Schedule(DAILY, missed=Missed.SKIP), Run(3, NINE), NINE_LATER + LATE - 1,
     Step(Run(3, NINE_LATER), Run(4, NINE_LATER + 86_400_000))),
    (Schedule(DAILY, missed=Missed.SKIP), Run(3, NINE), NINE_LATER + LATE,
     Step(None, Run(3, NINE_LATER + 86_400_000))),
    # The end and the count: what is skipped does not count.
    (Schedule(TEN_S, until_ms=60_000), Run(1, 50_000), 50_000, Step(Run(1, 50_000), Run(2, 60_000))),
    (Schedule(TEN_S, until_ms=59_999), Run(1, 50_000), 50_000, Step(Run(1, 50_000), None)),
    (Schedule(TEN_S, until_ms=75_000), Run(1, 50_000), 99_000, Step(Run(1, 70_000), None)),
    (Schedule(TEN_S, count=2), Run(1, 50_000), 50_000, Step(Run(1, 50_000), Run(2, 60_000))),
    (Schedule(TEN_S, count=2), Run(2, 60_000), 60_000, Step(Run(2, 60_000), None)),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "run", "now_ms", "expected"), STEPS)
def test_a_run_that_is_due_is_done_or_not_and_names_the_next(
    schedule: Schedule, run: Run, now_ms: int, expected: Step
) -> None:
    assert schedule.step(run, now_ms) == expected


@pytest.mark.parametrize(
    ("schedule", "first"),
    [
        (Schedule(Every(10_000)), Run(1, 111_005)),
        (Schedule(Every(10_000, start_ms=500_000)), Run(1, 500_000)),
        (Schedule(Every(10_000, start_ms=1_005)), Run(1, 101_005)),
        (Schedule(Every(10_000, start_ms=1_006)), Run(1, 101_006)),
        (Schedule(Every(10_000, start_ms=1_004)), Run(1, 111_004)),
        (Schedule(Cron("* * * * * *")), Run(1, 102_000)),
        (Schedule(Every(10_000), until_ms=111_004), None),
    ],
)
def test_the_first_run_is_not_before_the_registration(schedule: Schedule, first: Run | None) -> None:
    assert schedule.first(101_005) == first


@settings(max_examples=20)
@given(
    st.integers(0, 40 * 86_400), st.sampled_from(["* * 3 * * *", "0 */7 * * * 1-5", "0 30 2 * * *", "59 59 23 * * *"])
)
def test_the_latest_run_is_the_last_that_looking_forward_finds(seconds: int, expression: str) -> None:
    cron = Cron(expression, BERLIN)
    first_ms = cron.next_ms(ms("2026-03-20T00:00:00Z"))
    now_ms = first_ms + seconds * 1000
    latest_ms = cron.latest_ms(first_ms, now_ms)
    assert first_ms <= latest_ms <= now_ms < cron.next_ms(latest_ms)


# -- ActiveMQ

NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"KEYS": "a"}, None),
        ({AMQ_DELAY: "5000"}, 5000),
        ({AMQ_DELAY: " 0 "}, 0),
        ({AMQ_PERIOD: "1000"}, 1000),
        ({AMQ_DELAY: "5000", AMQ_PERIOD: "1000", AMQ_REPEAT: "9"},
         Schedule(Every(1000, NOW_MS + 5000), count=10, missed=Missed.ALL)),
        ({AMQ_PERIOD: "1000", AMQ_REPEAT: "-1"}, Schedule(Every(1000, NOW_MS + 1000), missed=Missed.ALL)),
        ({AMQ_CRON: "0 * * * *"}, Schedule(Cron("0 * * * *", BERLIN))),
        ({AMQ_CRON: "0 * * * *", AMQ_DELAY: "1000", AMQ_PERIOD: "2000", AMQ_REPEAT: "9"},
         Schedule(Cron("0 * * * *", BERLIN), burst=Burst(1000, 2000, 10))),
    ],
)  # fmt: skip
def test_activemq_properties(properties: dict[str, str], expected: Schedule | int | None) -> None:
    assert activemq(properties, BERLIN, NOW_MS) == expected


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({AMQ_DELAY: "soon"}, "AMQ_SCHEDULED_DELAY: expected a whole number, got 'soon'"),
        ({AMQ_DELAY: "-1"}, "AMQ_SCHEDULED_DELAY -1 is outside 0"),
        ({AMQ_DELAY: "१"}, "expected a whole number"),
        ({AMQ_DELAY: "9" * 20}, "outside"),
        ({AMQ_DELAY: "--1"}, "expected a whole number"),
        ({AMQ_PERIOD: "1", AMQ_REPEAT: "3"}, "period 1 ms is outside 10"),
        ({AMQ_PERIOD: "1000", AMQ_REPEAT: "-2"}, "AMQ_SCHEDULED_REPEAT -2 is outside -1"),
        ({AMQ_REPEAT: "3"}, "without AMQ_SCHEDULED_PERIOD"),
        ({AMQ_CRON: "61 * * * *"}, "Bad minute '61'"),
        ({AMQ_CRON: "0 0 * * FRY"}, "Bad day-of-week 'FRY'"),
        ({AMQ_CRON: "tomorrow"}, "Wrong number of fields"),
        ({AMQ_CRON: "0 0 31 4 *"}, "cron expression"),
        ({AMQ_CRON: "*," * 200}, "characters"),
    ],
)
def test_what_activemq_properties_cannot_mean_is_refused(properties: dict[str, str], said: str) -> None:
    with pytest.raises(BadSchedule, match=said):
        activemq(properties, BERLIN, NOW_MS)


@pytest.mark.parametrize(
    "zone", ["Europe/Atlantis", "", "../etc/passwd", "/etc/localtime", "Europe", "a" * 5000, "a\0b"]
)
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(BadSchedule, match=r"no time zone .*Europe/Berlin"):
        Cron("* * * * *", zone)
