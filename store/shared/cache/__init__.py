"""The local disk as a cache of the shared log: sealed segments that only the object store has, and what is read back.

remote_segment.py    the file `log/<start>-<end>.remote`: which bytes of which objects a dropped segment has
range_cache.py       ranges of objects that were read back: files in `cache/`, at most so many bytes
cached_files.py      the files of a data directory in which a dropped segment reads like any other one
chunk_requests.py    the requests for them
remote_files.py      the same files for a program beside the broker
local_segments.py    which segments of the local log may be dropped
dropping.py          which segments are dropped, and when
"""
