"""Proves that an owner uploads as many bytes at a time as the store takes in a fraction of the time of a takeover."""

import pytest

from duolog.store.shared.upload_window import BYTES_MIN, FIRST_BYTES, UploadWindow

MIB = 1 << 20
TAKEOVER_MS, TARGET_MS = 3_000, 500


def used(window: UploadWindow, bytes_per_s: int, latency_ms: int, uploads: int = 50, size: int = MIB) -> int:
    """Upload through a full window again and again; return how long the last upload took."""
    took_ms = 0
    for _ in range(uploads):
        took_ms = latency_ms + window.bytes * 1000 // bytes_per_s
        window.note(size, window.bytes, took_ms)
    return took_ms


def test_window_grows_up_to_its_greatest_size_while_the_store_is_fast() -> None:
    window = UploadWindow(64 * MIB, TAKEOVER_MS)
    assert window.bytes == FIRST_BYTES
    used(window, 1_000 * MIB, latency_ms=5, uploads=100)
    assert window.bytes == 64 * MIB


@pytest.mark.parametrize("mib_per_s", [2, 12, 60])
def test_upload_takes_a_fraction_of_a_takeover_over_a_slow_line(mib_per_s: int) -> None:
    window = UploadWindow(64 * MIB, TAKEOVER_MS)
    took_ms = used(window, mib_per_s * MIB, latency_ms=20, size=MIB // 4)
    assert took_ms < 1.5 * TARGET_MS
    assert took_ms > 0.5 * TARGET_MS


def test_store_that_is_slow_to_answer_takes_small_objects_at_a_time() -> None:
    window = UploadWindow(64 * MIB, TAKEOVER_MS)
    used(window, 1_000 * MIB, latency_ms=2_000)
    assert window.bytes == BYTES_MIN


def test_least_window_is_not_above_the_greatest() -> None:
    window = UploadWindow(MIB // 2, TAKEOVER_MS)
    assert window.bytes == MIB // 2
    used(window, MIB, latency_ms=2_000)
    assert window.bytes == MIB // 2
