"""Kafka's wire protocol: bytes to values and back.

api            keys, versions, headers; any request and response as kio entities
produce, fetch the two hot APIs, read and written by hand
record_batch   the frame that is stored and served: check, stamp, open, build
compression    its codecs, with a limit on what comes out
shape          walks a request before kio decodes it, so that no count can lie
wire           strings, bytes and arrays in their classic and compact spellings
"""
