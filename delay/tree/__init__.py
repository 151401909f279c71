"""The log-structured merge tree of pending timers: jobs (flush, tombstones, compaction) and cursors over tables."""
