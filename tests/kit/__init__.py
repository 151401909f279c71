"""Test doubles and helpers: a disk that loses power, a clock that the test sets, a loop whose time jumps.

Tests use these instead of mocks. `disk.CrashDisk` and `disk.FailingDisk` implement `store.files.Files`,
`clock.ManualClock` implements `bridge.clock.Clock`, and `loop.VirtualLoop` runs a whole broker through a day in a
second.
"""
