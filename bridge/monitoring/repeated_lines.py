"""The class RepeatedLines: one log line for a client that does the same thing again and again.

`logs.FloodFilter` limits all lines of one kind. This limit is for lines that a single client causes at each of its
attempts, so that they neither fill the log nor use up the limit of their kind, which lines about other clients need.
"""

from typing import Final

QUIET_MS: Final = 60_000  # After a line with a key, further ones are only counted for this time.
KEYS_MAX: Final = 1_000  # When it is reached, all keys and counts are dropped.


class RepeatedLines:
    """The keys of the lines of the last QUIET_MS. A key has the values that make two lines the same."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, ...], tuple[int, int]] = {}  # Time of the last line, lines omitted since then.

    def take(self, key: tuple[str, ...], mono_ms: int) -> int | None:
        """Return how many lines with this key were omitted since the last one; None: this one is to be omitted, too."""
        written_mono_ms, omitted = self._lines.get(key, (mono_ms - QUIET_MS, 0))
        if mono_ms - written_mono_ms < QUIET_MS:
            self._lines[key] = written_mono_ms, omitted + 1
            return None
        if len(self._lines) >= KEYS_MAX:
            self._lines.clear()
        self._lines[key] = mono_ms, 0
        return omitted
