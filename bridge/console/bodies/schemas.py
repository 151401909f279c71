"""The schema of a topic, and bodies decoded by it. `http.schemas_directory` has the schemas as files:

    TOPIC.avsc    an Avro schema in JSON
    TOPIC.desc    a FileDescriptorSet of Protobuf (`protobuf.py`)

A body may begin with the prefix of a schema registry: a zero byte and the number of the schema in four bytes, and in
Protobuf the place of the message type, of which only the first one is known. Files are read for each page, so a new one
counts at once. All of this runs in a thread.
"""

import json
from pathlib import Path
from typing import Any, Final

from duolog.bridge.console.bodies.avro import AvroSchema
from duolog.bridge.console.bodies.bounded_reader import UndecodableBody
from duolog.bridge.console.bodies.protobuf import ProtobufSchema

FILE_BYTES_MAX: Final = 1 << 20
BODY_BYTES_MAX: Final = 64 << 10  # A longer body is not decoded.
REGISTRY_BYTES: Final = 5

Schema = AvroSchema | ProtobufSchema


def load(directory: str, topic: str) -> Schema:
    """Return the schema of a topic. Raises UndecodableBody if there is none, or none that can be used."""
    if not directory:
        raise UndecodableBody("http.schemas_directory is empty, so no topic has a schema")
    for suffix in ("avsc", "desc"):
        path = Path(directory) / f"{topic}.{suffix}"
        try:
            if not path.is_file():
                continue
            if path.stat().st_size > FILE_BYTES_MAX:
                raise UndecodableBody(f"{path.name} is larger than {FILE_BYTES_MAX} bytes")
            raw = path.read_bytes()
        except OSError as error:
            raise UndecodableBody(f"{path.name} cannot be read: {error.strerror}") from error
        return _parsed(path.name, raw, suffix)
    raise UndecodableBody(f"http.schemas_directory has no {topic}.avsc and no {topic}.desc")


def _parsed(name: str, raw: bytes, suffix: str) -> Schema:
    try:
        return AvroSchema(json.loads(raw)) if suffix == "avsc" else ProtobufSchema(raw)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise UndecodableBody(f"{name} is no schema: {error}") from error


def decoded(schema: Schema, body: bytes) -> Any:
    """Return the value of a body. Raises UndecodableBody."""
    if len(body) > BODY_BYTES_MAX:
        raise UndecodableBody(f"the body has more than {BODY_BYTES_MAX} bytes")
    starts = [0]
    if len(body) > REGISTRY_BYTES and body[0] == 0:
        is_protobuf = isinstance(schema, ProtobufSchema)
        starts = [REGISTRY_BYTES + is_protobuf, 0]
    problem = ""
    for start in starts:
        try:
            return schema.decode(body, start)
        except (UndecodableBody, TypeError, KeyError, AttributeError, RecursionError) as error:
            problem = problem or str(error)
    raise UndecodableBody(problem)
