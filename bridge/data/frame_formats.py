"""The wire forms of frames, as the store numbers them. The numbers are on disk: never change or reuse one."""

from typing import Final

from duolog.store.entry import FIRST_FRAME_FORM

KAFKA: Final = FIRST_FRAME_FORM  # one record batch, version 2
ROCKETMQ: Final = FIRST_FRAME_FORM + 1  # one message record
