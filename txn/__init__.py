"""Transactions as state machines: what they are, which requests they allow, and what readers may see. Imports `store`.

    coordinator   Kafka's transactional ids: a table of states and requests
    requests      which requests of transactional producers are refused, by state or by limit
    isolation     the last stable offset of each queue, and which of its records were aborted
    half          RocketMQ's half messages: their verdicts, and when the broker sends a check-back
    half_ids      the ids that Kafka producers give their half messages

No module here appends anything or knows a wire format. `bridge/transactions/kafka_transactions.py` and
`bridge/transactions/half_messages.py` append what was decided, and the state here then follows the log.
"""
