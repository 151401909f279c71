"""Kafka transactions and RocketMQ half messages as state machines. Imports `store` only.

    coordinator   Kafka's transaction coordinator: the table of states and requests
    requests      which requests of transactional producers are refused, by state or by limit
    isolation     the last stable offset of each queue, and which of its records were aborted
    half          RocketMQ's half messages: their verdicts, and when the broker sends check-backs
    half_ids      the ids that Kafka producers give their half messages

No module of this package appends to the log or knows a wire format. `bridge/transactions/kafka_transactions.py` and
`bridge/transactions/half_message_log.py` append the decisions, and then call the methods that change the state.
"""
