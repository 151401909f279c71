"""Transactions: what they are, what may be done to them, and what readers may see meanwhile. Imports only `store`.

    coordinator   Kafka's transactional ids as a state machine: a table of who may do what, and when
    isolation     of each queue: where its last stable offset is, and which of its records were aborted
    half          RocketMQ's half messages: what may become of each, and when to ask its producer

None appends anything, nor knows a wire form: `bridge/transactions/kafka_transactions.py` and
`bridge/transactions/half_messages.py` ask them, append
the decision to the log, and have them follow it.
"""
