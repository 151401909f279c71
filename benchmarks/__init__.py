"""Benchmarks of Duolog's speed and cost, beside Apache Kafka and Apache RocketMQ in the same run.

    make bench                                          # all of it: about an hour, 40 GB of disk in between
    make bench BENCH=--quick                            # a quarter of an hour
    .venv/bin/python -m benchmarks --only paths         # the hot paths in process, a minute
    .venv/bin/python -m benchmarks --list               # the rows end to end
    .venv/bin/python -m benchmarks --only kafka-java-produce --only rocketmq-send
    .venv/bin/python -m benchmarks --quick --json all.json
    .venv/bin/python -m benchmarks --flush sync         # every broker syncs before it answers

`paths` feeds requests to a broker inside the process and prints microseconds of CPU beside the budget. `end_to_end`
runs stock clients (`loads`, `librdkafka`, `java/`) against Duolog and against the broker that `peers/` fetches and
starts, in turns (`contenders`); `goals` and `report` say what is to be reached, and print it. Needs a JDK 17 and Maven.

How to read it:

- Broker CPU per message decides where the clients are the brake, as they mostly are on two cores: user and system time
  of the broker's process during the round. The name server of RocketMQ is not counted.
- A ratio is the median over the rounds of ours divided by the peer's in the same round. "At least the peer" is 0.95.
- A broker on a JVM gets faster for a minute or two. Each row starts fresh brokers and runs one round that does not
  count, so a figure is that of a broker some ten seconds old. Longer rounds favour the peers.
- Topics have four queues on all sides. Clients keep their defaults, but for librdkafka's consumer, which stalls with
  its own (`queued.min.messages`, `fetch.queue.backoff.ms`), and `linger.ms=0` where one message is in flight.
- While one broker is measured an idle Apache RocketMQ is stopped (SIGSTOP): it would take a seventh of a core.
- Memory is anonymous resident memory. "Cold" data was written, synced and dropped from the page cache.
- Nothing else should run: with other load on the machine latencies mean nothing, and ratios little.
"""
