"""The object `security` of a prefix: the brokers of the stream ask who their clients are, and with which key.

    {"key": "<64 hexadecimal digits>"}    derived from the key of `security.secret_key_file`, which it does not show

The first broker with `security.enabled` creates it. A broker with another key is refused, because after a takeover no
access key would be right. A broker without `security.enabled` is refused, because after a takeover everybody could do
everything.
"""

import json
from pathlib import Path
from typing import Final

from duolog.bridge.security.secret_box import SecretBox
from duolog.store.errors import StoreError
from duolog.store.objects.interface import ObjectStore

KEY: Final = "security"
MARK_BYTES_MAX: Final = 4096


class WrongSecurity(StoreError):
    """This broker has other settings of security than the brokers of the stream; the message says what to do."""


async def check_key_file(objects: ObjectStore, path: Path, *, is_there: bool) -> None:
    """Raise WrongSecurity if the brokers of the stream have a key and this broker has no key file.

    Otherwise its start would make a new key, which is of no use. Raises ObjectStoreError.
    """
    if not is_there and await objects.get(KEY, MARK_BYTES_MAX) is not None:
        raise WrongSecurity(
            f"security.secret_key_file: {path} does not exist, and the brokers of this stream have a key: copy their "
            f"file to this machine; if it is lost for ever, remove the object {KEY}, and give users new passwords"
        )


async def check_security(objects: ObjectStore, box: SecretBox | None) -> None:
    """Compare the object with the key of this broker, or create it; `box` is None if `security.enabled` is off.

    Raises WrongSecurity and ObjectStoreError.
    """
    found = await objects.get(KEY, MARK_BYTES_MAX)
    if box is None:
        if found is not None:
            raise WrongSecurity(
                f"the brokers of this stream have security.enabled, and this one has not: set it, with a copy of their "
                f"security.secret_key_file; to turn security off for all of them, remove the object {KEY}"
            )
        return
    if found is None:
        await objects.create(KEY, _mark(box))
    await check_key(objects, box)


async def check_key(objects: ObjectStore, box: SecretBox) -> None:
    """Compare the object, if there is one, with the key. Raises WrongSecurity and ObjectStoreError."""
    if await objects.get(KEY, MARK_BYTES_MAX) not in (None, _mark(box)):
        raise WrongSecurity(
            "the key in security.secret_key_file is another one than that of the other brokers of this stream: copy "
            f"their file to this machine; if it is lost for ever, remove the object {KEY}, and give users new passwords"
        )


def _mark(box: SecretBox) -> bytes:
    return json.dumps({"key": box.derive(b"stream").hex()}).encode() + b"\n"
