"""A broker that a service manager starts with `Type=notify` says when it is ready, that it lives, and when it stops.

systemd's own tool finds no fault in the unit file, and no more exposure than it had when it was written.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.kit.broker import Broker
from tests.kit.lacking import skip_or_fail

UNIT = Path(__file__).parents[2] / "packaging/systemd/duolog.service"
PROGRAM = "/opt/duolog/bin/duolog"
WITHIN_S = 10
EXPOSURE_MAX = "20"  # Of 100, as `systemd-analyze security` counts; 15 with systemd 252.


def test_ready_then_signs_of_life_then_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(WITHIN_S)
        receiver.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        heard = []
        with Broker(tmp_path / "data") as broker:
            while heard.count(b"WATCHDOG=1") < 3:
                heard.append(receiver.recv(1000))
        while not heard[-1].startswith(b"STOPPING=1"):
            heard.append(receiver.recv(1000))
    ready = next(each for each in heard if each.startswith(b"READY=1\n"))
    assert f"kafka={broker.kafka}" in ready.decode()
    assert {each.split(b"\n")[0] for each in heard} == {b"READY=1", b"WATCHDOG=1", b"STOPPING=1"}


@pytest.mark.parametrize("command", [["verify"], ["security", "--offline=true", f"--threshold={EXPOSURE_MAX}"]])
def test_systemd_accepts_the_unit_file(command: list[str], tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        skip_or_fail("no systemd-analyze; Debian's package systemd has it")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(PROGRAM, "/bin/true"))  # `verify` looks for the program.
    done = subprocess.run(["systemd-analyze", *command, str(unit)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
