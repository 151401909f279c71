"""Duolog, a message broker. The packages below are the folders of the repository's root, under one import name.

`store`, `delay`, `txn` and `protocol` are the parts, `bridge` is the broker made of them, `spark` is the data pipeline.
"""
