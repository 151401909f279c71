"""Everything about time to come: decides what is due when, names its next deadline, and never asks a clock.

May import `store`. The main names:

    Wheel                    delay/wheel.py      timers in O(1); one on the monotonic clock (`bridge/net/purgatory.py`)
    Buckets, View            delay/buckets.py    timers of far days, in files: which count, looks over all of them
    FarTimer, BucketEntry    delay/bucket.py     one of them; one file as the log names it
    Schedule                 delay/recurring.py  when a recurring message runs next

    wheel: Wheel[str] = Wheel(start_ms=1_000)
    late = wheel.add(1_500, "late")
    wheel.add(1_200, "early")
    wheel.cancel(late)                    # True
    wheel.next_deadline_ms()              # 1200
    wheel.advance(1_600)                  # ["early"]
"""
