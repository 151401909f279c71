"""Hostile values for one field of a request, shared by the generators of all three wires.

A generator builds a valid request, picks one or two of its fields, and replaces each by one of these. `LONG` values are
rare, because a request with one costs a hundred times as much to send as another.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
Repeatable = TypeVar("Repeatable", bytes, list)  # type: ignore[type-arg]

LONG_RATIO = 0.02  # The share of the replaced values that are long.
REPEATS = (2, 3, 17, 300)
REPEATS_LONG = (2_000, 20_000)
REPEATED_ELEMENTS_MAX, REPEATED_BYTES_MAX = 1 << 20, 16 << 20

TEXTS: tuple[bytes, ...] = (
    b"", b" ", b"a", b"orders", b"absent", b"billing", b"..", b"a b", b"*", b"a||b", b"TAGS", b"\0", b"\r\n\x1b[2J\a",
    b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", "€\u2028\U0001f600".encode(), b"%RETRY%", b"%RETRY%billing",
    b"%DLQ%billing", b"%RETRY%billing_orders", b"%RETRY%billing+orders", b"SCHEDULE_TOPIC_XXXX", b"TBW102",
    b"RMQ_SYS_TRANS_HALF_TOPIC", b"rmq_sys_wheel_timer", b"__consumer_offsets", b"x" * 249, b"x" * 300,
    b"0", b"-1", b"1e400", b"9" * 400, b"NaN", b"true", b"null", b"[]", b"{}", b'"', b"(((((((((((((((",
    b"a > 1 AND b IS NOT NULL", b"* * * * * *", b"@yearly", b"../../etc", b"%2e%2e/", b"0 1 1000 0 0 duolog 0 0",
    b"\x01\x02", b"TRAN_MSG\x01true\x02", b"TIMER_DELIVER_MS\x01-1\x02", b"DELAY\x0118\x02",
    b"AMQ_SCHEDULED_CRON\x01* * * * *\x02",
)  # fmt: skip
TEXTS_LONG: tuple[bytes, ...] = (
    b"x" * 32_767, b"\xff" * 32_000, b"(" * 30_000, b"a||" * 10_000, b"\x01\x02" * 10_000,
    b"TRAN_MSG\x01true\x02" * 1_700,
    b"k\x01v\x02" * 8_000, b"9" * 32_000, "é".encode() * 16_000, b'"' * 32_000, b"\\" * 32_000,
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 7, 31, 32, 33, 255, 256, 1_000, 65_535, 65_536, 1_000_000, 10**12)


def text(rng: random.Random) -> bytes:
    return rng.choice(TEXTS_LONG if rng.random() < LONG_RATIO else TEXTS)


def number(rng: random.Random, bits: int) -> int:
    """Return a signed integer of `bits` bits: a limit of the type, or a value with a meaning in some field."""
    least, greatest = -(1 << bits - 1), (1 << bits - 1) - 1
    chosen = rng.choice((least, least + 1, greatest, greatest - 1, rng.randint(least, greatest), *NUMBERS))
    return chosen if least <= chosen <= greatest else greatest


def repeated(rng: random.Random, value: Repeatable) -> Repeatable:
    """Repeat the list or the bytes several times. The result has a limit, because the next mutation may repeat it."""
    limit = REPEATED_ELEMENTS_MAX if isinstance(value, list) else REPEATED_BYTES_MAX
    count = rng.choice(REPEATS_LONG if rng.random() < LONG_RATIO else REPEATS)
    return value * max(1, min(count, limit // max(1, len(value))))


def broken(rng: random.Random, sent: bytes) -> bytes:
    """Return the bytes with one fault, as a broken client or network makes it."""
    at = rng.randrange(len(sent) + 1)
    faults = (
        lambda: sent[:at],
        lambda: sent[:at] + rng.randbytes(rng.choice((1, 2, 4, 8))) + sent[at:],
        lambda: sent[:at] + rng.choice((b"\xff", b"\0", b"\x7f", b"\x80")) * rng.choice((1, 2, 4, 8)) + sent[at + 4 :],
        lambda: sent[:at] + bytes([1 << rng.randrange(8) ^ (sent[at] if at < len(sent) else 0)]) + sent[at + 1 :],
        lambda: sent[:at] + sent[max(0, at - 16) : at] * 3 + sent[at:],
        lambda: sent + rng.randbytes(9),
    )
    return rng.choice(faults)()


def pick(rng: random.Random, items: Sequence[T]) -> T:
    return items[rng.randrange(len(items))]
