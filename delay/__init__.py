"""Everything about time to come: decides what is due when, names its next deadline, and never asks a clock.

May import `store`. The main name, for now: `wheel.Wheel`, timers in O(1). `bridge` keeps two of them, one on the
monotonic clock (`bridge/purgatory.py`) and one on the wall clock.

    wheel: Wheel[str] = Wheel(start_ms=1_000)
    late = wheel.add(1_500, "late")
    wheel.add(1_200, "early")
    wheel.cancel(late)                    # True
    wheel.next_deadline_ms()              # 1200
    wheel.advance(1_600)                  # ["early"]
"""
