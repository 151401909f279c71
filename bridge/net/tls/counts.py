"""The class TlsCounts: what metrics report about TLS."""

from dataclasses import dataclass


@dataclass(slots=True)
class TlsCounts:
    """Counts since the start, over all ports."""

    completed: int = 0  # Handshakes.
    failed: int = 0  # Handshakes that ended with an error, and those that were closed at a limit.
    plain_refused: int = 0  # Connections without TLS that `tls.mode=required` closed.
    unfinished: int = 0  # Handshakes that have begun and not ended, now.
    certificate_expires_s: int = 0  # Unix time at which the broker's certificate expires; 0: there is none.
