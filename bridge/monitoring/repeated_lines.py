"""The class RepeatedLines: one log line for a client that does the same thing again and again.

`logs.FloodFilter` limits all lines of one kind. This limit is for lines that a single client causes at each of its
attempts, so that they neither fill the log nor use up the limit of their kind, which lines about other clients need.
"""

from typing import Final

QUIET_MS: Final = 60_000  # After a line with a key, further ones are only counted for this time.
KEYS_MAX: Final = 1_000  # When it is reached, all keys are dropped; the next line has the counts of all.


class RepeatedLines:
    """The keys of the lines of the last QUIET_MS. A key has the values that make two lines the same."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, ...], tuple[int, int]] = {}  # Time of the last line, lines omitted since then.
        self._dropped = 0  # Lines that were omitted for keys that were dropped.

    def take(self, key: tuple[str, ...], mono_ms: int) -> int | None:
        """Return how many lines were omitted with this key since the last one, and with keys that were dropped.

        None: this line is to be omitted, too.
        """
        written_mono_ms, omitted = self._lines.get(key, (mono_ms - QUIET_MS, 0))
        if mono_ms - written_mono_ms < QUIET_MS:
            self._lines[key] = written_mono_ms, omitted + 1
            return None
        self._lines.pop(key, None)
        if len(self._lines) >= KEYS_MAX:
            self._dropped += sum(count for _, count in self._lines.values())
            self._lines.clear()
        self._lines[key] = mono_ms, 0
        omitted, self._dropped = omitted + self._dropped, 0
        return omitted
