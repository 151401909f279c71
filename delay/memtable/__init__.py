"""The memtable: pending timers whose messages are in the log, as rows in the order of their due times."""
