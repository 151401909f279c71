"""The way of a message into its queue: this package appends every message that becomes visible.

    produced_batches    checks a batch of a Produce request, and sorts its records by what their headers ask for
    kafka_plan          plans what Kafka records become: frames and state records, without appending anything
    rocketmq_plan       does the same for RocketMQ messages
    pending_quota       whom a delayed message counts for, and whether there is room in the quota
    publisher           checks the limits of a plan, appends it as one unit, and follows what was appended
    refusals            the exceptions by which a plan is refused

Delayed messages are handed to `bridge/data/delayed/delays.py`, half messages to
`bridge/transactions/half_message_log.py`, and `half_decisions.py` appends verdicts on those of Kafka producers.
"""
