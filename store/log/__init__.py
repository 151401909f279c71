"""The commitlog: its bytes, its segments, the write buffer, and the frames that are read from it."""
