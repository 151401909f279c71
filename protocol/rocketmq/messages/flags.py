"""The bits of RocketMQ's flag fields. They are plain integers, because they are tested for every message.

Sources: `MessageSysFlag.java`, `PullSysFlag.java`, `PermName.java`, `CompressionType.java`.
"""

from typing import Final

# -- sysFlag of a message: SEND header and record

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80

TRANSACTION_MASK: Final = 0xC
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

COMPRESSION_MASK: Final = 0x700
COMPRESSION_ZLIB_LEGACY: Final = 0x000  # Clients before 4.9.4 have one codec and do not name it.
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

# -- sysFlag of a pull request

PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10

# -- Permissions of a topic

PERM_INHERIT: Final = 0x1
PERM_WRITE: Final = 0x2
PERM_READ: Final = 0x4
PERM_PRIORITY: Final = 0x8
PERM_READ_WRITE: Final = PERM_READ | PERM_WRITE
