"""The job transactions: reports the outcome of half messages, the time to decide, and the check-backs.

The job reads these topics:

    RMQ_SYS_TRANS_HALF_TOPIC       all half messages of both protocols; each becomes one row of the table
    RMQ_SYS_TRANS_OP_HALF_TOPIC    the verdicts, by the offset of the half message; without one, it is open
    the topics of the messages     the committed messages, at the position that the verdict names

The columns of the table:

    half_offset    the offset of the half message
    protocol       the protocol of the producer: kafka or rocketmq
    id             the id that the producer gave: TRAN_MSG_ID for Kafka, UNIQ_KEY for RocketMQ
    topic          the topic of the message
    outcome        committed, rolled back, given up or open
    checks         the number of check-backs
    decide_ms      the time from the storing of the half message to its verdict
    age_ms         the age of an open half message
    place          topic/queue/offset at which the committed message was appended
    final          the state of a committed message:
                     present    it is at `place`
                     delayed    it is a pending message until its due time
                     none       nothing was appended: it is a recurring message, or had expired and was dropped
                     removed    its topic was deleted, or retention has removed it
                     missing    it should be at `place` and is not, which is an error

The table has the half messages that retention has not removed from the half topic. The HTTP API of the broker returns
the ends of the topics, and details of the oldest open half messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from duolog.protocol.names import kafka_name
from duolog.protocol.rocketmq.names import HALF_TOPIC, OP_HALF_TOPIC
from duolog.spark.broker_api import ApiError, BrokerApi
from duolog.spark.messages import messages
from duolog.spark.progress import OnProgress, Summary, watched
from duolog.spark.stopping import Stop, Stopped, cancelling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HALF, OP = kafka_name(HALF_TOPIC), kafka_name(OP_HALF_TOPIC)
_OUTCOMES: Final = {"C": "committed", "R": "rolled back", "G": "given up"}
OUTCOMES: Final = (*_OUTCOMES.values(), "open")
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
SHOWN_MAX: Final = 10  # Open half messages in the summary, the oldest ones.
_OPEN_SCHEMA: Final = "half_offset bigint, known_topic string, known_checks int, known_age_ms bigint"
_ENDS_SCHEMA: Final = "place_topic string, place_queue int, start bigint, end bigint"
_ACCURACY: Final = 10_000


@dataclass(frozen=True, slots=True)
class TransactionsOptions:
    path: str  # The folder for the table.
    bootstrap: str
    http: str


def transactions(
    session: SparkSession, options: TransactionsOptions, on_progress: OnProgress | None = None, stop: Stop | None = None
) -> Summary:
    """Write the table as Parquet to `path`/table, and return the summary. Raises ApiError and errors of Spark."""
    try:
        with cancelling(stop or Stop(), session):
            return _traced(session, options, on_progress)
    except Stopped:
        return {"table": "not written"}


def _traced(session: SparkSession, options: TransactionsOptions, on_progress: OnProgress | None) -> Summary:
    with watched(session, on_progress):
        table = _table(session, options).persist()
        table.coalesce(1).write.mode("overwrite").parquet(f"{options.path}/table")
        counts = {(row.outcome, row.final): row["count"] for row in table.groupBy("outcome", "final").count().collect()}
        figures = table.agg(
            *(F.percentile_approx("decide_ms", share, _ACCURACY).alias(name) for name, share in QUANTILES.items()),
            F.max("decide_ms").alias("max"),
            F.count_if(F.col("checks") > 0).alias("checked"),
            F.max("checks").alias("checks"),
        ).first()
        oldest = table.where("outcome = 'open'").orderBy(F.desc("age_ms")).limit(SHOWN_MAX).collect()
        table.unpersist()
    assert figures is not None
    summary: Summary = {"half messages": sum(counts.values())}
    summary |= {each: sum(n for (outcome, _), n in counts.items() if outcome == each) for each in OUTCOMES}
    summary |= {f"decided within ms, {name}": figures[name] for name in (*QUANTILES, "max")}
    summary |= {"checked": figures.checked, "checks of one, at most": figures.checks or 0}
    for state in ("delayed", "none", "removed", "missing"):
        summary[f"committed, the message {state}"] = sum(n for (_, final), n in counts.items() if final == state)
    hanging = [f"{row.topic}/{row.id} for {(row.age_ms or 0) // 1000} s, {row.checks or 0} checks" for row in oldest]
    return summary | {"open the longest": "; ".join(hanging) or "none", "table": f"{options.path}/table"}


def _table(session: SparkSession, options: TransactionsOptions) -> DataFrame:
    api = BrokerApi(options.http)
    # The ends are read in this order, so that the verdict on each half message that is read and not open is read, too.
    half_end, open_ones = _end_of(api, HALF), _open_ones(session, api)
    halves = _halves(_system_topic(session, options, HALF, half_end))
    ops = _verdicts(_system_topic(session, options, OP, _end_of(api, OP))).persist()
    known = halves.join(ops, "half_offset", "left").join(F.broadcast(open_ones), "half_offset", "left")
    is_open = F.col("verdict").isNull()
    age_ms = F.coalesce("known_age_ms", F.unix_millis(F.current_timestamp()) - F.col("born_ms"))
    rows = known.select(
        "half_offset",
        "protocol",
        "id",
        F.coalesce("verdict_topic", "half_topic", "known_topic").alias("topic"),
        F.coalesce("verdict", F.lit("open")).alias("outcome"),
        F.coalesce("verdict_checks", "known_checks").alias("checks"),
        (F.col("decided_ms") - F.col("stored_ms")).alias("decide_ms"),
        F.when(is_open, age_ms).alias("age_ms"),
        "place_topic",
        "place_queue",
        "place_offset",
    )
    return _with_finals(session, rows, ops, options, api)


def _system_topic(session: SparkSession, options: TransactionsOptions, topic: str, end: int) -> DataFrame:
    return messages(session, topic, bootstrap=options.bootstrap, ending={topic: {0: end}}, committed_only=False)


def _end_of(api: BrokerApi, topic: str) -> int:
    return int(api.get("/api/topics", topic)["queues"][0]["end"])


def _open_ones(session: SparkSession, api: BrokerApi) -> DataFrame:
    """Return the details of the oldest open half messages from the HTTP API."""
    rows: list[tuple[Any, ...]] = [
        (row["half_offset"], kafka_name(row["id"].partition("/")[0]), row["checks"], row["age_ms"])
        for row in api.get("/api/transactions")
        if "half_offset" in row
    ]
    return session.createDataFrame(rows, _OPEN_SCHEMA)


def _halves(rows: DataFrame) -> DataFrame:
    properties = F.col("properties")
    return rows.select(
        F.col("offset").alias("half_offset"),
        F.col("producer").alias("protocol"),
        F.coalesce(properties["TRAN_MSG_ID"], properties["UNIQ_KEY"]).alias("id"),
        properties["REAL_TOPIC"].alias("half_topic"),
        F.unix_millis("timestamp").alias("born_ms"),
    )


def _verdicts(rows: DataFrame) -> DataFrame:
    """Return the verdicts of op messages. Their body lists offsets (`17,18,`), and TRAN_VERDICTS the verdict on each.

    `bridge/transactions/half_message_log.py` writes them.
    """
    each = F.explode(F.arrays_zip(_listed(F.col("body").cast("string")), _listed(F.col("properties")["TRAN_VERDICTS"])))
    pairs = rows.select(F.unix_millis("timestamp").alias("decided_ms"), each.alias("pair"))
    fields = F.split(F.col("pair")["1"], " ")
    place = F.split(fields.getItem(4), "/")
    outcome = F.create_map(*(F.lit(part) for pair in _OUTCOMES.items() for part in pair))
    return pairs.select(
        F.col("pair")["0"].cast("bigint").alias("half_offset"),
        outcome[fields.getItem(0)].alias("verdict"),
        fields.getItem(1).cast("int").alias("verdict_checks"),
        fields.getItem(2).cast("bigint").alias("stored_ms"),
        fields.getItem(3).alias("verdict_topic"),
        "decided_ms",
        F.when(F.size(place) == 3, place.getItem(0)).alias("place_topic"),
        F.try_element_at(place, F.lit(2)).cast("int").alias("place_queue"),
        F.try_element_at(place, F.lit(3)).cast("bigint").alias("place_offset"),
    )


def _listed(text: Column) -> Column:
    """Split a text that has a comma after each part."""
    return F.split(F.rtrim(text, F.lit(",")), ",")


# -- What was committed


def _with_finals(
    session: SparkSession, rows: DataFrame, ops: DataFrame, options: TransactionsOptions, api: BrokerApi
) -> DataFrame:
    """Add the columns `place` and `final`."""
    placed = ops.where("verdict = 'committed' AND place_topic IS NOT NULL")
    named = placed.groupBy("place_topic", "place_queue")
    wanted = named.agg(F.min("place_offset").alias("first"), F.max("place_offset").alias("last")).collect()
    ends = {(topic, queue): ends for topic in {row.place_topic for row in wanted} for queue, ends in _ends(api, topic)}
    starting: dict[str, dict[int, int]] = {}
    ending: dict[str, dict[int, int]] = {}
    for row in wanted:
        start, end = ends.get((row.place_topic, row.place_queue), (0, 0))
        first, after = max(row.first, start), min(row.last + 1, end)
        if first < after:
            starting.setdefault(row.place_topic, {})[row.place_queue] = first
            ending.setdefault(row.place_topic, {})[row.place_queue] = after
    place = [F.col("place_topic"), F.col("place_queue"), F.col("place_offset")]
    kept = session.createDataFrame([(*queue, *both) for queue, both in ends.items()], _ENDS_SCHEMA)
    rows = rows.join(F.broadcast(kept), ["place_topic", "place_queue"], "left")
    if starting:
        found = _places(session, options, starting, ending)
        rows = rows.join(found, ["place_topic", "place_queue", "place_offset"], "left")
    else:
        rows = rows.withColumn("is_there", F.lit(None).cast("boolean"))
    return rows.withColumn("place", F.concat_ws("/", *place)).withColumn("final", _final()).select(
        "half_offset", "protocol", "id", "topic", "outcome", "checks", "decide_ms", "age_ms",
        F.when(F.col("place") != "", F.col("place")).alias("place"), "final",
    )  # fmt: skip


def _ends(api: BrokerApi, topic: str) -> list[tuple[int, tuple[int, int]]]:
    """Return (queue id, (log start, end)) of the queues of a topic; nothing if the topic does not exist."""
    try:
        queues = api.get("/api/topics", topic)["queues"]
    except ApiError:
        return []
    return [(each["queue"], (each["start"], each["end"])) for each in queues]


def _places(
    session: SparkSession,
    options: TransactionsOptions,
    starting: dict[str, dict[int, int]],
    ending: dict[str, dict[int, int]],
) -> DataFrame:
    found = messages(
        session,
        assign={topic: list(queues) for topic, queues in starting.items()},
        bootstrap=options.bootstrap,
        starting=starting,
        ending=ending,
        committed_only=False,
    )
    return found.select(
        F.col("topic").alias("place_topic"),
        F.col("queue").alias("place_queue"),
        F.col("offset").alias("place_offset"),
        F.lit(True).alias("is_there"),
    )


def _final() -> Column:
    state = F.when(F.col("place_topic").isNull(), "none")
    state = state.when(F.col("start").isNull() | (F.col("place_offset") < F.col("start")), "removed")
    state = state.when(F.col("is_there").isNull(), "missing")
    state = state.when(F.col("place_topic") != F.col("topic"), "delayed").otherwise("present")
    return F.when(F.col("outcome") == "committed", state)
