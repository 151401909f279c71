"""Kafka's wire protocol: bytes to values and back.

api_messages      API keys and versions, headers, and the bodies of requests and responses as kio entities
produce, fetch    the two most frequent APIs, encoded and decoded without kio
request_check     verifies a request before kio decodes it
response          encodes large responses in steps
primitive_types   strings, bytes and arrays in their classic and compact encodings
record_batch      the record batch: header, verification, changes of the header
record_check      verifies the records of a produced batch; record_walk is its version in Python
record_reader     decodes the records of a batch
batch_builder     encodes a batch
marker            transaction markers
compression       the codecs of record batches
varint            variable-length integers of records
"""
