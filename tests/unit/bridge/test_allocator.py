"""Freed memory stays in the process. The program runs in a process of its own, because it changes the whole process."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from duolog.bridge.running.allocator import keep_freed_memory

keep_freed_memory()
for round in range(50):
    buffers = [bytearray(1 << 20) for _ in range(4)]
    del buffers
    if round == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 4 << 20 >> 12  # Of the buffers of one round. The system clears each of them at every page fault.


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_freed_buffers_are_used_again_without_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES, "page faults in 49 rounds"
