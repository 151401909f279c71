"""The commitlog: its format, its segments, the write buffer, the appender, and the readers of entries."""
