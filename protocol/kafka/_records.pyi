"""The walk through a batch's records in C; `record_walk.py` has the same in Python, and explains it."""

from protocol.kafka.compression import Buffer

def walk(
    data: Buffer, start: int, count: int, headers_max: int, names: tuple[bytes, ...], /
) -> tuple[int, int, int, bool, bool] | tuple[int, int, int, int]: ...
