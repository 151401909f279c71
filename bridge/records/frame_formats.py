"""The numbers of the frame formats in entry headers. They are stored on disk: never change or reuse a number."""

from typing import Final

from duolog.store.entry import FIRST_FRAME_FORM

KAFKA: Final = FIRST_FRAME_FORM  # A record batch of version 2.
ROCKETMQ: Final = FIRST_FRAME_FORM + 1  # One message in the format of the commitlog.
