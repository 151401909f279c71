"""The permission to write in routes of the embedded name server (WIPE_WRITE_PERM_OF_BROKER)."""


class WritePermission:
    """The permission to write. A restart resets it, as in Apache RocketMQ's name server."""

    def __init__(self) -> None:
        self.is_wiped = False
