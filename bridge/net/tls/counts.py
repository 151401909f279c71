"""The class TlsCounts: the figures of the TLS metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class TlsCounts:
    """Counts since the start, over all ports."""

    completed: int = 0  # Completed handshakes.
    failed: int = 0  # Handshakes that ended with an error or were closed at a limit.
    plain_refused: int = 0  # Connections without TLS that `tls.mode=required` closed.
    unfinished: int = 0  # Handshakes in progress; a gauge.
    certificate_expires_s: int = 0  # The Unix time at which the broker's certificate expires; 0 without a certificate.
