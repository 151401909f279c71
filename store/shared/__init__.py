"""The shared log: the log of a stream in an object store, one broker that appends to it, and others that follow it.

    wal/wal_object.py    the format of one object, which is one slot of the log
    wal/slots.py         which range goes to which slot, and which slots count: the owner's side
    wal/log_cursor.py    which objects count: the reader's side
    wal/fencing.py       how a broker takes over
    wal/lost_slots.py    whether an empty slot is the end of the log
    cache/               the local disk as a cache: segments that only the store has
    segments/            compaction: segment objects, manifests
    moving/              a data directory becomes a stream, and a stream a data directory
    joining.py           a start: which stream, what the local log lacks, what it has too much
    uploader.py          uploads what the owner appends
    upload_window.py     how many bytes it uploads at a time
    polling.py           which slots a follower asks for, and when
    follower.py          applies what the owner has uploaded, and takes over
    lease.py             how long an owner may answer without the store
    copy_state.py        what a data directory knows of its stream
    own_log.py           whether a data directory has a log of its own, for brokers without an object store
    reading.py           reads ranges of the log in another process, for Spark
    replica.py           puts these together, for one broker

A *stream* is one log with one writer at a time. docs/internals/shared-log.md says why nothing is lost. No module knows
the network or the time: requests go to an `ObjectStore` (`store/objects/`), and `mono_ms` is the caller's clock.
"""
