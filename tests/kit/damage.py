"""Damages files of a real directory, as `CrashDisk.flip` damages those of a disk in memory."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path, at: int, mask: int = 0xFF) -> None:
    """Flip the bits of `mask` in the byte at `at`; a negative `at` counts from the end of the file."""
    content = bytearray(path.read_bytes())
    content[at] ^= mask
    path.write_bytes(content)
