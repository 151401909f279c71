"""The way of a message into its queue: every message that becomes visible comes through here.

    produced_batches    checks a batch of a Produce request, and sorts its records by what their headers ask for
    kafka_plan          plans what Kafka records become: frames and state records, without appending anything
    rocketmq_plan       does the same for RocketMQ messages
    publisher           checks the limits of a plan, appends it as one unit, and follows what was appended
    delivery_frames     makes frames of pending messages, when they are delivered or moved to another time
    stamps              writes what is known only at the append into a frame: offset, leader epoch, time
    refusals            the exceptions by which a plan is refused

Delayed messages are handed to `bridge/data/delayed/delays.py`, half messages to `bridge/transactions/half_messages.py`.
"""
