"""What the log stores: the types of state records, and the numbers of the frame formats.

Each module has the records of one kind of state. `layout.py` is their base, `codec.py` encodes and decodes them.
"""
