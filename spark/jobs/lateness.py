"""The job lateness: measures how late delayed messages became visible, by topic and minute.

The lateness of a message is its store time in its topic minus its due time (`spark/log_source.py`, `withTimes`); it is
negative if the message was early. Messages with RocketMQ's delay levels have no due time and are not measured. Messages
whose due time is before their original timestamp are not measured either, because their producer asked for a time in
the past; the summary has their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from duolog.spark.jobs.axis import duration_axis, time_limits
from duolog.spark.progress import OnProgress, Summary, watched
from duolog.spark.stopping import Stop, Stopped, cancelling

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import Column, DataFrame, Row

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
WAITED: Final = "due > born or born is null"
PLOTTED_MAX: Final = 20  # Topics in the plot: matplotlib refuses images with 65,536 pixels or more.
_ACCURACY: Final = 10_000  # The relative error of a percentile's rank is 1 / _ACCURACY.


def lateness(rows: DataFrame, path: str, on_progress: OnProgress | None = None, stop: Stop | None = None) -> Summary:
    """Write a table to `path`/table (CSV) and a plot to `path`/lateness.png, a local folder; return the summary.

    `rows` are those of the data source "duolog-log" with `withTimes`.
    """
    try:
        with cancelling(stop or Stop(), rows.sparkSession):
            return _measured(rows, path, on_progress)
    except Stopped:
        return {"table": "not written"}


def _measured(rows: DataFrame, path: str, on_progress: OnProgress | None) -> Summary:
    with watched(rows.sparkSession, on_progress):
        late = by_minute(rows).persist()
        late.coalesce(1).write.mode("overwrite").option("header", "true").csv(f"{path}/table")
        minutes = late.orderBy("topic", "minute").collect()
        late.unpersist()
        left_out = F.count_if(F.col("late_ms").isNull()).alias("left_out")
        all_ = _delayed(rows).agg(left_out, *_figures()).first()
    assert all_ is not None
    summary: Summary = {
        "delayed messages": all_.messages,
        "left out, due before they were made": all_.left_out,
        "early": all_.early,
        **{f"{name} ms": getattr(all_, f"{name}_ms") for name in (*QUANTILES, "max")},
        "table": f"{path}/table",
    }
    return summary | {"plot": plot(minutes, f"{path}/lateness.png")} if minutes else summary


def by_minute(rows: DataFrame) -> DataFrame:
    """Return for each topic and minute of the due time: messages, early messages, percentiles and maximum in ms."""
    waited = _delayed(rows).where("late_ms is not null")
    return waited.groupBy("topic", F.date_trunc("minute", "due").alias("minute")).agg(*_figures())


def _delayed(rows: DataFrame) -> DataFrame:
    """Return the delayed messages with their lateness, which is null if it is not measured."""
    late_ms = F.when(F.expr(WAITED), F.unix_millis("stored") - F.unix_millis("due")).alias("late_ms")
    return rows.where("due is not null").select("topic", "due", late_ms)


def _figures() -> list[Column]:
    quantiles = [
        F.percentile_approx("late_ms", share, _ACCURACY).alias(f"{name}_ms") for name, share in QUANTILES.items()
    ]
    counts = [F.count("late_ms").alias("messages"), F.count_if(F.col("late_ms") < 0).alias("early")]
    return [*counts, *quantiles, F.max("late_ms").alias("max_ms")]


def plot(minutes: list[Row], path: str) -> str:
    """Draw the percentiles of each topic over time into a PNG file; return its path and which topics it shows."""
    from matplotlib.figure import Figure

    latest = sorted({row.topic for row in minutes}, key=lambda topic: (-_maximum_ms(minutes, topic), topic))
    topics = sorted(latest[:PLOTTED_MAX])
    figure = Figure(figsize=(9, 3 * len(topics)), layout="constrained")
    for number, topic in enumerate(topics):
        _draw(figure.add_subplot(len(topics), 1, number + 1), topic, [row for row in minutes if row.topic == topic])
    figure.savefig(path, dpi=110)
    return path if len(topics) == len(latest) else f"{path}, of the {len(topics)} latest of {len(latest)} topics"


def _maximum_ms(minutes: list[Row], topic: str) -> int:
    return max(int(row.max_ms) for row in minutes if row.topic == topic)


def _draw(axes: Axes, topic: str, rows: list[Row]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    names = [*QUANTILES, "max"]
    axis = duration_axis([row[f"{name}_ms"] for row in rows for name in names])
    times = [row.minute for row in rows]
    for name in names:
        axes.plot(times, [row[f"{name}_ms"] / axis.unit_ms for row in rows], marker=".", label=name)
    if axis.is_logarithmic:
        axes.set_yscale("symlog", linthresh=1 / axis.unit_ms)
    axes.set(title=topic, ylabel=f"{axis.unit} late", ylim=(axis.low, axis.high), xlim=time_limits(times))
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.legend(loc="upper right", ncols=4, frameon=False)
