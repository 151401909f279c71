"""Hooks that are really installed: the audit log of docs/guides/hooks.md, and one that refuses, changes and hangs.

Each is a package of its own, installed by pip in an environment that sees the broker's.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.broker import Broker
from tests.kit.command import DUOLOG
from tests.kit.eventually import eventually
from tests.wire.clients import frames
from tests.wire.clients.frames import Wire

GUIDE = Path(__file__).parents[2] / "docs/guides/hooks.md"
WITHIN_S = 20.0
TIMEOUT_MS = 300
NO_PERMISSION = 16
_numbers = itertools.count(int(time.time()))

MOODY = """
import dataclasses
import time

from duolog.bridge.hooks import Hook, Refuse


class Moody(Hook):
    def before_send(self, send):
        if send.body == b"refused":
            raise Refuse("not today")
        if send.body == b"changed":
            return dataclasses.replace(send, body=b"otherwise", properties={**send.properties, "BY": "hook"})
        if send.body == b"failing":
            raise ValueError("a fault of the hook's own")
        if send.body == b"hanging":
            time.sleep(3)
            raise Refuse("much too late")
"""


def block(language: str) -> str:
    return GUIDE.read_text().split(f"```{language}\n")[1].split("```")[0]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment with both hooks installed."""
    folder = tmp_path_factory.mktemp("hooks")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
    python = str(folder / "venv/bin/python")
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = subprocess.run([python, "-c", where], check=True, timeout=60, capture_output=True, text=True).stdout
    host = f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n"
    (Path(packages.strip()) / "host.pth").write_text(host)
    project = block("toml")
    for name, hook, code in (("audit", "Audit", block("python")), ("moody", "Moody", MOODY)):
        (folder / name).mkdir()
        (folder / name / f"{name}.py").write_text(code)
        text = project.replace("audit:Audit", f"{name}:{hook}").replace("audit", name)
        (folder / name / "pyproject.toml").write_text(text)
        command = [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            folder / name,
        ]
        subprocess.run(command, check=True, timeout=120)
    return python


@pytest.fixture(scope="module")
def hooked(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"store.flush": "async", "hooks.timeout_ms": TIMEOUT_MS}
    with Broker(tmp_path_factory.mktemp("hooked") / "data", settings, command=(python, *DUOLOG[1:])) as broker:
        yield broker


def send(wire: Wire, topic: str, body: bytes) -> tuple[int, str]:
    reply = wire.rocketmq(frames.SEND, frames.send_fields(topic), body)
    return reply.code, reply.remark


def stored(wire: Wire, topic: str) -> bytes:
    return wire.rocketmq(frames.PULL, frames.pull_fields(topic)).body


def skipped(broker: Broker) -> dict[str, int]:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    lines = re.findall(r"^duolog_hooks_skipped\S*?\{(.*)\} (\S+)$", text, re.MULTILINE)
    return {labels: int(float(count)) for labels, count in lines}


def test_audit_log_of_the_guide_has_a_line_for_each_message(hooked: Broker) -> None:
    topic = f"hooks-{next(_numbers)}"
    with Wire(hooked.rocketmq) as wire:
        assert send(wire, topic, b"plain") == (0, "")
        assert send(wire, topic, b"refused") == (NO_PERMISSION, "not today")
    line = rf"send topic={topic} group=p client=127\.0\.0\.1:\d+ id={{}} code={{}}"
    for wanted in (line.format("[0-9A-F]{32}", 0), line.format("", NO_PERMISSION)):
        eventually(
            "the audit log", hooked.log_tail, lambda log, wanted=wanted: re.search(wanted, log) is not None, WITHIN_S
        )


def test_message_is_what_the_hook_made_of_it(hooked: Broker) -> None:
    topic = f"hooks-{next(_numbers)}"
    with Wire(hooked.rocketmq) as wire:
        assert send(wire, topic, b"changed")[0] == 0
        assert b"otherwise" in stored(wire, topic)
        assert b"BY\x01hook\x02" in stored(wire, topic)


@pytest.mark.parametrize("fault", ["failing", "hanging"])
def test_hook_that_fails_or_hangs_is_passed_over_and_counted(hooked: Broker, fault: str) -> None:
    topic = f"hooks-{next(_numbers)}"
    before = sum(skipped(hooked).values())
    with Wire(hooked.rocketmq) as wire, Wire(hooked.rocketmq) as other:
        wire.send(frames.remoting_request(frames.SEND, frames.send_fields(topic), fault.encode()))
        assert send(other, topic, b"plain") == (0, "")  # Only the request that it is about waits.
        assert wire.reply().code == 0
        assert fault.encode() in stored(wire, topic)
    assert sum(skipped(hooked).values()) == before + 1
    assert "hook" in hooked.log_tail()
