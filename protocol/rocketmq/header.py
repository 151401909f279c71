"""The class Header, the base of all header classes (`headers.py`), and the errors of header fields."""

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
    """The base class of all headers. A field `queue_id` is the header field `queueId`."""

    @classmethod
    def parse(cls, ext: Mapping[str, str]) -> Self:
        """Decode the fields of `RemotingCommand.ext`. Raises MissingField and InvalidField."""
        try:
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            raise explain(cls, ext, error) from None

    def to_ext(self) -> dict[str, str]:
        """Encode the fields as text for `RemotingCommand.ext`. Fields that are None are omitted."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {
            name: value if value.__class__ is str else _as_text(value)
            for name, value in fields.items()
            if value is not None
        }


def explain(cls: type[Header], ext: Mapping[str, str], error: msgspec.ValidationError) -> ProtocolError:
    """Convert an error of msgspec to MissingField for the first missing field, or to InvalidField.

    The messages are those of Apache RocketMQ.
    """
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
