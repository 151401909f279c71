"""The memtable: pending timers whose messages are in the log, as rows in the windows of a timing wheel."""
