"""`GET /metrics`: the values are read from the parts of the broker that own them, at each scrape and in slices.

    broker_families.py   metrics whose number of series is fixed by tables of the broker
    topic_families.py    metrics of topics and queues
    group_families.py    metrics of groups
    exposition.py        the answer in the text format of Prometheus

The names of kafka_exporter and of RocketMQ 5 are exported beside Duolog's own, so that dashboards for them work.
"""
