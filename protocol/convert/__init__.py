"""One stored form read as the other: `mapping.py` has the table, `to_kafka.py` and `to_rocketmq.py` the directions."""
