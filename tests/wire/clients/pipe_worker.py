"""One worker of a consume-transform-produce pipeline on librdkafka, run as a child so that it can be killed:

    python pipe_worker.py BOOTSTRAP GROUP TRANSACTIONAL_ID FROM TO

Each transaction moves a few records from FROM to the same queue of TO and commits the group's positions with them. It
ends by itself only after an error that its library calls fatal; then the test starts it again.
"""

from __future__ import annotations

import os
import sys
import time

import confluent_kafka

RECORDS_MAX = 20
STEP_WITHIN_S = 20
FIND_AGAIN_S = 0.1
FIND_AGAIN_FAST = {
    # Else it takes a broker that is away for gone, and may wait for that one for ever: librdkafka, issue 5511.
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "log_level": 0,
}


def main(bootstrap: str, group: str, transactional_id: str, source: str, target: str) -> None:
    common = {"bootstrap.servers": bootstrap, **FIND_AGAIN_FAST}
    consumer = confluent_kafka.Consumer(
        {
            **common,
            "group.id": group,
            "group.instance.id": transactional_id,  # So that a new run takes the place of the one that was killed.
            "session.timeout.ms": 6_000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = confluent_kafka.Producer(
        {**common, "transactional.id": transactional_id, "transaction.timeout.ms": 10_000, "linger.ms": 0}
    )
    producer.init_transactions(STEP_WITHIN_S)
    consumer.subscribe([source])
    while True:
        records = []
        for each in consumer.consume(RECORDS_MAX, timeout=0.1):
            error = each.error()
            if error is None:
                records.append(each)
            elif error.fatal():  # Another run has the place in the group: a zombie that woke up, say.
                raise confluent_kafka.KafkaException(error)
        if records:
            move(producer, consumer, records, target)


def move(
    producer: confluent_kafka.Producer,
    consumer: confluent_kafka.Consumer,
    records: list[confluent_kafka.Message],
    target: str,
) -> None:
    producer.begin_transaction()
    try:
        for each in records:
            producer.produce(target, each.value(), partition=each.partition() or 0)
        positions = {each.partition(): each for each in records}
        offsets = [
            confluent_kafka.TopicPartition(last.topic() or "", queue or 0, (last.offset() or 0) + 1)
            for queue, last in positions.items()
        ]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), STEP_WITHIN_S)
        producer.commit_transaction(STEP_WITHIN_S)
    except confluent_kafka.KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        producer.abort_transaction(STEP_WITHIN_S)
        back_to_committed(consumer)


def back_to_committed(consumer: confluent_kafka.Consumer) -> None:
    for each in committed(consumer):
        if each.offset < 0:
            each.offset = confluent_kafka.OFFSET_BEGINNING
        consumer.seek(each)


def committed(consumer: confluent_kafka.Consumer) -> list[confluent_kafka.TopicPartition]:
    """Return the committed positions; ask again while the library finds the new coordinator, because it fails then."""
    while True:
        try:
            return consumer.committed(consumer.assignment(), STEP_WITHIN_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.NOT_COORDINATOR:
                raise
            time.sleep(FIND_AGAIN_S)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except confluent_kafka.KafkaException:
        os._exit(1)  # The library's own end may wait for ever: for a rebalance that nobody takes part in.
