"""Sorted tables: immutable files of timers with their messages, their tombstones, and the manifest.

`flush.py`, `compaction.py` and `TombstoneWrite` block, so workers run them. The jobs in `delay/tree/` decide when, and
commit the manifest with the results.
"""
