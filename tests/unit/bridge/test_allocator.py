"""Freed memory stays in the process, for all its threads. The program has a process of its own, which it changes."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from concurrent.futures import ThreadPoolExecutor
from duolog.bridge.running.allocator import keep_freed_memory

keep_freed_memory()
threads = ThreadPoolExecutor(1)

def use_buffers():
    [bytearray(1 << 20) for _ in range(4)]

use_buffers()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(49):
    use_buffers()
    threads.submit(use_buffers).result()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 4 << 20 >> 12  # Of the buffers of one round. The system clears each of them at every page fault.


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_freed_buffers_are_used_again_without_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES // 2, "page faults in 49 rounds of two threads"
