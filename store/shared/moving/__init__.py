"""Moves the log of a stopped broker between a data directory and an object store.

    to_store.py      a data directory becomes the stream of an empty prefix
    to_disk.py       a stream becomes a data directory that needs no object store

What is moved stays where it was. Every byte that was written is read again and compared by its checksum.
"""
