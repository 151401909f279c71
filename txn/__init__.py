"""Transactions: what they are, what may be done to them, and what readers may see meanwhile. Imports only `store`.

    coordinator   Kafka's transactional ids as a state machine: a table of who may do what, and when
    isolation     of each queue: where its last stable offset is, and which of its records were aborted

Neither appends anything, nor knows a wire form: `bridge/transactions.py` asks them, appends the decision to the log,
and has them follow it.
"""
