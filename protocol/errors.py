"""The exception of the package `protocol`."""


class ProtocolError(Exception):
    """The peer has sent bytes that its protocol does not allow.

    The connection must be closed, unless the protocol has an answer for this error. Such errors are subclasses, for
    example `protocol.kafka.record_batch.InvalidBatch`.
    """
