"""Sorted tables: immutable files of timers with their messages, their tombstones, the manifest, and compaction."""
