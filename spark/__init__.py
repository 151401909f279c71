"""The data pipeline: PySpark on the topics of a broker. It needs the extra `.[spark]`; the broker does not import it.

The package imports `protocol` (codecs) and `store` (the class LogReader). Messages are read and written through Spark's
Kafka connector. The main names:

    messages, as_messages    spark/messages.py      a topic as a DataFrame, with columns for RocketMQ's properties
    DuologLog                spark/log_source.py    a data source that reads the files of the log

A first look:

    from duolog.spark.messages import messages

    orders = messages(session, "orders", bootstrap="127.0.0.1:9092")
    orders.where("tags = 'paid'").groupBy("queue").count().show()
"""
