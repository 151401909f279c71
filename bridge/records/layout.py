"""How a state record becomes bytes: a msgpack array, first the tag, then the fields in order.

A new field is appended with a default, so that an older log still reads. Tags and field positions are never reused.
Times are wall milliseconds. A queue is named by its key, `topic number << 16 | queue id`.
"""

import msgspec


class StateRecordBody(msgspec.Struct, array_like=True, frozen=True):
    """The base of all state records; each has its own tag."""
