"""Delayed and recurring messages, without wire formats: what is due when, and the next deadline. Never asks a clock.

May import `store`. The main names:

    Wheel                    delay/wheel.py      timers in O(1); one on the monotonic clock (`bridge/net/purgatory.py`)
    Timers                   delay/timers.py     all delayed messages: pending, held by transactions, cancelled
    PendingTimers            delay/pending.py    what is in memory, merged and in turns of topics
    TimerTree                delay/tree/         the log-structured merge tree: flush, cursors, compaction
    Memtable                 delay/memtable/     timers whose messages are in the log, 32 bytes for each
    Tables, SortedTable      delay/tables/       far timers, in files; the manifest, tombstones
    DeliverySchedules        delay/schedules.py  recurring messages and their next runs
    Schedule                 delay/recurring.py  the rule that says when a message recurs

    wheel: Wheel[str] = Wheel(start_ms=1_000)
    late = wheel.add(1_500, "late")
    wheel.add(1_200, "early")
    wheel.cancel(late)                    # True
    wheel.next_deadline_ms()              # 1200
    wheel.advance(1_600)                  # ["early"]
"""
