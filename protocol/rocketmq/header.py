"""The base of all header classes (`headers.py`): reading the fields from text, writing them, and their errors."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec

from duolog.protocol.errors import ProtocolError

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class MissingField(ProtocolError):
    """A mandatory header field is absent: response code SYSTEM_ERROR, this text (Java's own) as the remark."""

    def __init__(self, field: str) -> None:
        super().__init__(f"the custom field <{field}> is null")
        self.field = field


class InvalidField(ProtocolError):
    """A header field is not of its type: response code SYSTEM_ERROR, this text as the remark."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"the custom field <{field}> is illegal: {reason}")
        self.field = field


class Header(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all headers."""

    @classmethod
    def parse(cls, ext: Mapping[str, str]) -> Self:
        """Read the fields from `ext`. Raises MissingField and InvalidField."""
        try:
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            raise explain(cls, ext, error) from None

    def to_ext(self) -> dict[str, str]:
        """Write the fields as text; one that is None is left out."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {
            name: value if value.__class__ is str else _as_text(value)
            for name, value in fields.items()
            if value is not None
        }


def explain(cls: type[Header], ext: Mapping[str, str], error: msgspec.ValidationError) -> ProtocolError:
    """Say which field msgspec stumbled over, in RocketMQ's words: the first that is missing, as Java checks them."""
    for field in msgspec.structs.fields(cls):
        if field.required and field.encode_name not in ext:
            return MissingField(field.encode_name)
    reason, _, place = str(error).partition(" - at `$.")
    name = place.rstrip("`")
    return InvalidField(name, f"{reason}: {ext.get(name)!r:.100}")


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
