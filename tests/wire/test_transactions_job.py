"""The job `transactions` reports the outcome of each half message, of producers of both protocols.

Stock clients write one half message for each outcome; then the job reads the half topic, the op topic and the topic.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import Agents
from tests.wire.clients.spark import Spark
from tests.wire.clients.topics import create_topic, end_offsets
from tests.wire.test_half import CHECK_MAX, GIVEN_UP, Producer, decide, produce_half
from tests.wire.test_messages import delete_until

if TYPE_CHECKING:
    from duolog.spark.progress import Summary

BROKER_SETTINGS = {"txn.immunity_ms": 300, "txn.check_interval_ms": 200, "txn.check_max": CHECK_MAX}
pytestmark = pytest.mark.usefixtures("both_protocols")

WITHIN_S = 60.0
TOPIC = "shop.orders"  # RocketMQ spells it shop|orders.


def run(broker: Broker, spark: Spark, path: Path) -> tuple[Summary, dict[str, dict[str, Any]]]:
    """Run the job; return its summary, and its rows by the id of the half message."""
    from duolog.spark.jobs.transactions import TransactionsOptions, transactions

    summary = transactions(spark.session, TransactionsOptions(str(path), broker.kafka, broker.http))
    return summary, {row.id: row.asDict() for row in spark.session.read.parquet(str(path / "table")).collect()}


def test_each_half_message_has_its_outcome(broker: Broker, agents: Agents, spark: Spark, tmp_path: Path) -> None:
    nothing, _ = run(broker, spark, tmp_path)
    assert (nothing["half messages"], nothing["open the longest"]) == (0, "none")
    create_topic(broker.kafka, TOPIC, 1)
    producer = Producer(broker, agents.rocketmq("5.5"))
    bodies = ("removed: commit", "rolled-back: rollback", "checked: unknown, commit", "given-up: unknown, unknown")
    ids = {each.partition(":")[0]: producer.send("shop|orders", each)[0]["transaction_id"] for each in bodies}
    (kept,) = producer.send("shop|orders", "kept: unknown, unknown", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    ids["kept"] = kept["transaction_id"]
    produce_half(broker, TOPIC, "k-commit", "k-back", "k-open")
    produce_half(broker, TOPIC, "k-later", TIMER_DELAY_SEC="600")
    assert [decide(broker, TOPIC, *each) for each in (("k-commit", "commit"), ("k-back", "rollback"))] == [200, 200]
    produce_half(broker, TOPIC, "k-recurs", AMQ_SCHEDULED_PERIOD="600000", AMQ_SCHEDULED_REPEAT="-1")
    assert [decide(broker, TOPIC, id, "commit") for id in ("k-later", "k-recurs")] == [200, 200]
    eventually(GIVEN_UP, lambda: end_offsets(broker.kafka, GIVEN_UP), lambda ends: ends[0] == 1, WITHIN_S)
    eventually("commits", lambda: end_offsets(broker.kafka, TOPIC), lambda ends: ends == {0: 3}, WITHIN_S)
    delete_until(broker.kafka, TOPIC, 1)

    summary, rows = run(broker, spark, tmp_path)
    by_kafka = ("k-commit", "k-back", "k-open", "k-later", "k-recurs")
    row_of = {name: rows[ids.get(name, name)] for name in (*ids, *by_kafka)}
    assert len(rows) == len(row_of) == 10
    assert {name: (row["protocol"], row["outcome"], row["final"]) for name, row in row_of.items()} == {
        "removed": ("rocketmq", "committed", "removed"),
        "rolled-back": ("rocketmq", "rolled back", None),
        "checked": ("rocketmq", "committed", "present"),
        "given-up": ("rocketmq", "given up", None),
        "kept": ("rocketmq", "open", None),
        "k-commit": ("kafka", "committed", "present"),
        "k-back": ("kafka", "rolled back", None),
        "k-open": ("kafka", "open", None),
        "k-later": ("kafka", "committed", "delayed"),
        "k-recurs": ("kafka", "committed", "none"),
    }
    assert {row["topic"] for row in rows.values()} == {TOPIC}
    assert {row["place"] for row in rows.values() if row["final"] in ("present", "removed")} == {
        f"{TOPIC}/0/{offset}" for offset in range(3)
    }
    assert (row_of["given-up"]["checks"], row_of["removed"]["checks"]) == (CHECK_MAX, 0)
    assert row_of["checked"]["checks"] >= 1
    assert row_of["given-up"]["decide_ms"] >= 300 + (CHECK_MAX - 1) * 200
    assert all(
        (row["decide_ms"] is None) == (row["outcome"] == "open") == (row["age_ms"] is not None) for row in rows.values()
    )
    assert {each: summary[each] for each in ("half messages", "committed", "rolled back", "given up", "open")} == {
        "half messages": 10, "committed": 5, "rolled back": 2, "given up": 1, "open": 2,
    }  # fmt: skip
    assert (
        summary["checked"],
        summary["committed, the message missing"],
        summary["committed, the message removed"],
    ) == (2, 0, 1)
    assert summary["open the longest"].startswith(f"{TOPIC}/{ids['kept']} for ")
    assert f"; {TOPIC}/k-open for " in summary["open the longest"]
    producer.close()
