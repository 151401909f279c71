"""Sorted tables: immutable files of timers with their messages, their tombstones, and the manifest.

    tables          the manifest and the current tables     references       closes what nothing uses any more
    tables_view     reads of all tables, merged             table_files      opens, checks and removes files
    sorted_table    reads of one table                      table_writer     writes one table
    table_format    the format; paged_index: its indexes    flush            rows of the memtable to a table
    compaction      chooses tables, and merges them         tombstones       the deleted timers of a table

Writes, and most reads, block, so workers run them. The jobs in `delay/tree/` decide when, and commit the manifest with
the results.
"""
