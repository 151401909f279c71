"""The data pipeline: PySpark on the broker's topics. Needs the extra `.[spark]`; the broker never loads it.

Imports `protocol` (codecs) and `store` (its read-only reader). Messages come and go over the wire, through Spark's own
Kafka connector. The main names:

    messages, as_messages    spark/messages.py      a topic as rows, with RocketMQ's meaning as columns

A first look:

    from duolog.spark.messages import messages

    orders = messages(session, "orders", bootstrap="127.0.0.1:9092")
    orders.where("tags = 'paid'").groupBy("queue").count().show()
"""
