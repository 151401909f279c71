"""What the tests stand on: a disk that loses power, a clock that is moved by hand, a loop whose time jumps.

Written with the care of product code, and used in place of mocks: `disk.CrashDisk` and `disk.FailingDisk` are
`store.files.Files`, `clock.ManualClock` is what `bridge.clock` is in production, `loop.VirtualLoop` runs a whole broker
through a day in a second.
"""
