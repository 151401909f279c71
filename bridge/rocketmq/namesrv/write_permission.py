"""Whether the embedded name server's routes let producers write to this broker, as WIPE_WRITE_PERM_OF_BROKER says."""


class WritePermission:
    """The permission to write; kept until the process ends, as a name server of Apache RocketMQ keeps it."""

    def __init__(self) -> None:
        self.is_wiped = False
