"""One writer of transactions on librdkafka, run as a child so that it can be killed:

    python txn_worker.py BOOTSTRAP TRANSACTIONAL_ID RUN SEED TOPIC QUEUES

It commits most of them and aborts the others, and says of each what it is about to do, and what came of it:

    open NAME                  its records are NAME INDEX COUNT, spread over the queues by chance
    asked NAME                 the commit is on its way
    committed NAME, aborted NAME

It ends by itself only after an error after which it can do nothing; then the test starts it again.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable

import confluent_kafka

from tests.wire.clients.pipe_worker import FIND_AGAIN_FAST

STEP_WITHIN_S = 20
RECORDS_MAX = 8
PAUSE_S_MAX = 0.05


def main(bootstrap: str, transactional_id: str, run: str, seed: str, topic: str, queues: str) -> None:
    rng = random.Random(seed)
    conf = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, **FIND_AGAIN_FAST}
    producer = confluent_kafka.Producer({**conf, "transaction.timeout.ms": 10_000})
    producer.init_transactions(STEP_WITHIN_S)
    number = 0
    while True:
        transact(producer, f"{transactional_id}.{run}.{number}", topic, int(queues), rng)
        number += 1


def transact(producer: confluent_kafka.Producer, name: str, topic: str, queues: int, rng: random.Random) -> None:
    say("open", name)
    producer.begin_transaction()
    count = rng.randint(1, RECORDS_MAX)
    try:
        for index in range(count):
            producer.produce(topic, f"{name} {index} {count}".encode(), partition=rng.randrange(queues))
            if rng.random() < 0.2:
                producer.flush(rng.uniform(0, PAUSE_S_MAX))  # So that some batches go out before the end.
        if rng.random() < 0.7:
            say("asked", name)
            until_done(producer.commit_transaction)
            say("committed", name)
            return
    except confluent_kafka.KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
    until_done(producer.abort_transaction)
    say("aborted", name)


def until_done(step: Callable[[float], None]) -> None:
    while True:
        try:
            return step(STEP_WITHIN_S)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable():
                raise


def say(what: str, name: str) -> None:
    print(what, name, flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except confluent_kafka.KafkaException:
        os._exit(1)  # Not by way of the library's own end, which may wait.
