"""Bodies of messages as people read them: by an Avro or Protobuf schema, as JSON, or as hexadecimal digits.

schemas.py     finds the schema of a topic, and decodes a body by it
avro.py        Avro's binary encoding (Avro specification 1.11)
protobuf.py    Protobuf's wire format, with the descriptors that `protoc --descriptor_set_out` writes
"""
