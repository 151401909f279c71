"""The log-structured merge tree of pending timers: the flush, the cursors that read tables, and the other jobs."""
