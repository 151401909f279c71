"""The object `stream` of a prefix in the object store: the id of the stream, and the version of its format.

It is JSON, for operators: {"format": 1, "stream": "<32 hexadecimal digits>"}.
"""

import json
from typing import Final

from duolog.store.errors import StoreError
from duolog.store.shared.requests import Requests
from duolog.store.shared.wal.wal_object import DamagedObject, damaged

KEY: Final = "stream"
FORMAT: Final = 1


class WrongStream(StoreError):
    """The data directory and the prefix in the store do not belong together. The message says what to do."""


def encode_stream(stream: bytes) -> bytes:
    return json.dumps({"format": FORMAT, "stream": stream.hex()}).encode() + b"\n"


def decode_stream(data: bytes) -> bytes:
    """Return the id in the object. Raises DamagedObject."""
    try:
        found = json.loads(data)
        version, stream = int(found["format"]), bytes.fromhex(found["stream"])
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(KEY, f"it is no description of a stream: {error!r}") from None
    if version != FORMAT:
        raise DamagedObject(
            f"the object {KEY} has format {version}, and this version of Duolog reads format {FORMAT}: "
            "start a newer version on this machine, too"
        )
    if len(stream) != 16:
        raise damaged(KEY, f"its id has {len(stream)} bytes, not 16")
    return stream


async def find_stream(requests: Requests, known: bytes | None, new: bytes) -> bytes:
    """Return the id of the stream in the store. If there is none, create a stream with the id `new`.

    `known` is the id in the data directory, if it has one. Raises WrongStream, DamagedObject, RequestsStopped.
    """
    while True:
        data = await requests.get(KEY)
        if data is not None:
            break
        if known is not None:
            raise WrongStream(
                f"the data directory is a copy of stream {known.hex()}, and the prefix in the store is empty: correct "
                "--shared, or restore the bucket, or use another data directory"
            )
        await requests.create(KEY, encode_stream(new))
    stream = decode_stream(data)
    if known not in (None, stream):
        raise WrongStream(
            f"the data directory is a copy of stream {known.hex()}, and the prefix in the store has stream "
            f"{stream.hex()}: two clusters must not use one prefix; correct --shared, or use another data directory"
        )
    return stream
