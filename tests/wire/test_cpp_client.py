"""The C++ client of 2019 (librocketmq), as PyPI's `rocketmq` carries it, sends and consumes in a group.

Its heartbeat has ordinals for enums, numbers as text, and leaves out what Java always sends. It runs in a process of
its own, for it has threads that a test run should not have; and from a folder of its own, for `rocketmq-python-client`
has the same name when it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kit.broker import Broker
from tests.kit.lacking import skip_or_fail

PACKAGE = "rocketmq==0.4.4"  # A wheel for Linux on x86-64, and no other.
COUNT = 20
WITHIN_S = 60

CLIENT = """
import sys, time
from rocketmq.client import Message, Producer, PushConsumer

namesrv, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
producer = Producer("cpp-producers")
producer.set_namesrv_addr(namesrv)
producer.start()
seen = set()
consumer = PushConsumer("cpp-consumers")
consumer.set_namesrv_addr(namesrv)
consumer.subscribe(topic, lambda message: seen.add(message.body), "wanted")
for number in range(count):
    for tag in ("wanted", "other"):
        message = Message(topic)
        message.set_tags(tag)
        message.set_body(f"{tag} {number}")
        producer.send_sync(message)
    if not number:
        consumer.start()
until = time.monotonic() + 30
while len(seen) < count and time.monotonic() < until:
    time.sleep(0.1)
print(sorted(seen, key=lambda body: int(body.split()[1])), flush=True)
consumer.shutdown()
producer.shutdown()
"""


def test_cpp_client_consumes_in_a_group(broker: Broker, tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "-q", "install", "--no-deps", "--target", str(tmp_path), PACKAGE]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if installed.returncode:
        skip_or_fail(f"{PACKAGE} cannot be installed: {installed.stderr[-300:]}")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, broker.namesrv, "cpp", str(COUNT)],
        capture_output=True, text=True, timeout=WITHIN_S, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert str([b"wanted %d" % number for number in range(COUNT)]) in done.stdout, done.stderr
