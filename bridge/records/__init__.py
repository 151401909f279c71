"""What the log stores besides frames: state records, a module for each idea, and the numbers of the frame formats.

`codec.py` writes and reads records; `layout.py` says how a record's fields become bytes.
"""
