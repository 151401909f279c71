"""The layout of state records: a msgpack array of a tag and the fields in order.

A new field is added at the end with a default, so that logs of older versions can be read. Tags and positions of fields
are never used again for something else. Times are wall milliseconds. A queue is identified by its queue key,
`topic number << 16 | queue id`.
"""

import msgspec


class StateRecordBody(msgspec.Struct, array_like=True, frozen=True):
    """The base of all state records; each has its own tag."""
