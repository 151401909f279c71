"""The memtable: pending timers whose messages lie in the log, as rows in the windows of a timing wheel."""
