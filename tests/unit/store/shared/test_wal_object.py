"""Proves that a WAL object reads back as it was written, and that any change of it is noticed and named."""

import random

import pytest

from duolog.store.shared.wal.wal_object import (
    ENDED_FLAG,
    HEADER_SIZE,
    DamagedObject,
    WalHeader,
    WalKind,
    decode,
    encode,
    key_of,
    sequence_of,
)

STREAM, WRITER = b"s" * 16, b"w" * 16
UNITS = WalHeader(WalKind.UNITS, ENDED_FLAG, 3, 17, 4096, 4112, 0xABCD, STREAM, WRITER)
FENCE = WalHeader(WalKind.FENCE, 0, 4, 18, 4112, 4112, 0xABCE, STREAM, WRITER)


@pytest.mark.parametrize(("header", "payload"), [(UNITS, [b"01234567", b"89abcdef"]), (FENCE, [b"claim"])])
def test_object_reads_back_and_every_changed_byte_is_noticed(header: WalHeader, payload: list[bytes]) -> None:
    data, sealed = encode(header, payload)
    found = decode(data, header.sequence)
    assert found.header == sealed
    assert sealed._replace(crc=0) == header
    assert bytes(found.payload) == b"".join(payload)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 + at % 255
        with pytest.raises(DamagedObject, match=key_of(header.sequence)):
            decode(changed, header.sequence)
    for size in range(len(data)):
        with pytest.raises(DamagedObject, match=key_of(header.sequence)):
            decode(data[:size], header.sequence)


@pytest.mark.parametrize(
    ("changes", "payload", "reason"),
    [
        ({"first": 4100}, b"0" * 12, "its units are at 4100"),
        ({"end": 4104}, b"0" * 16, "a payload of 16 bytes"),
        ({"flags": 8}, b"0" * 16, "flags 0x8"),
        ({"kind": WalKind.FENCE}, b"0" * 16, "a payload of 16 bytes"),
        ({"kind": WalKind.VOID, "end": 4096}, b"0" * 16, "a payload of 16 bytes"),
        ({"sequence": 16}, b"0" * 16, "its header has sequence 16"),
    ],
)
def test_object_that_contradicts_itself_is_damaged(changes: dict[str, int], payload: bytes, reason: str) -> None:
    data, _ = encode(UNITS._replace(**changes), [payload])
    with pytest.raises(DamagedObject, match=reason):
        decode(data, UNITS.sequence)


def test_object_of_a_newer_version_says_so() -> None:
    data, _ = encode(UNITS, [b"0" * 16])
    with pytest.raises(DamagedObject, match=r"format b'2'.*start a newer version"):
        decode(b"DLW2" + data[4:], 17)


def test_garbage_raises_nothing_else() -> None:
    chance = random.Random(7)
    for _ in range(300):
        garbage = b"DLW1"[: chance.randrange(5)] + chance.randbytes(chance.randrange(2 * HEADER_SIZE))
        with pytest.raises(DamagedObject):
            decode(garbage, 0)


def test_keys_sort_as_sequences() -> None:
    assert key_of(9) < key_of(10)
    assert (sequence_of(key_of(7)), sequence_of("wal/7"), sequence_of("seg/" + "0" * 20)) == (7, None, None)
