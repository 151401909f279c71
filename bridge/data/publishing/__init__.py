"""The way of a message into its queue: all messages that clients send are appended by `Publisher.append`.

    produced_batches    checks a batch of a Produce request, and sorts its records by what their headers ask for
    kafka_plan          plans what Kafka records become: frames and state records, without appending anything
    rocketmq_plan       does the same for RocketMQ messages; `rocketmq_batch_plan` joins the plans of a batch
    pending_quota       whom a delayed message counts for, and whether there is room in the quota
    publisher           checks the limits of a plan (`UnitPlan` in `bridge/data/units.py`), appends it as one unit, and
                        follows what was appended
    refusals            the exceptions by which a plan is refused

Half messages are handed to `bridge/transactions/half_message_log.py`, and `half_decisions.py` decides those of Kafka
producers. The units of deliveries, of runs of schedules and of transaction markers have no limits to check, so their
owners commit them to the state log.
"""
