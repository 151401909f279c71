"""The one exception of this package."""


class ProtocolError(Exception):
    """The peer sent bytes that its protocol does not allow.

    The connection cannot be trusted any more and is closed, except where a protocol has an answer for this very
    error: then a subclass says which (`protocol.kafka.record_batch.InvalidBatch`).
    """
