"""What scripts build on in `duolog serve`: the ready line, ports, exit statuses, one line for each mistake."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.broker import Broker, port_of
from tests.kit.eventually import eventually
from tests.kit.lacking import leave_out

PORTS = ("--kafka-port", "0", "--rocketmq-port", "0", "--namesrv-port", "0", "--http-port", "0")


@pytest.fixture(autouse=True)
def _only_ours(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--peers"):
        leave_out("the Apache brokers have commands of their own")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data") as broker:
        yield broker


def duolog(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    command = [sys.executable, "-I", "-m", "bridge", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_ready_line_names_the_ports_that_were_free(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", ports=dict.fromkeys(("kafka", "rocketmq", "namesrv", "http"), 0)) as running:
        for endpoint in (running.kafka, running.rocketmq, running.namesrv, running.http):
            assert port_of(endpoint) > 0
            socket.create_connection(("127.0.0.1", port_of(endpoint)), 5).close()
        with urllib.request.urlopen(f"http://{running.http}/readyz", timeout=5) as response:
            assert response.read() == b"ready\n"


def test_second_broker_on_the_same_directory_is_refused(running: Broker) -> None:
    refused = duolog("serve", "--data", str(running.data), *PORTS)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"duolog: store.directory: {running.data}: the data directory is locked")
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["kafka", "rocketmq", "namesrv", "http"])
def test_port_in_use_is_one_line(running: Broker, tmp_path: Path, name: str) -> None:
    taken = str(port_of(getattr(running, name)))
    setting = "rocketmq.namesrv_port" if name == "namesrv" else f"{name}.port"
    refused = duolog("serve", "--data", str(tmp_path / "other"), *PORTS, f"--{name}-port", taken)
    line = f"duolog: {setting}: cannot listen on 127.0.0.1:{taken}: Address already in use\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", line)


@pytest.mark.parametrize("name", ["file", "file/data"])
def test_directory_that_cannot_be_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    refused = duolog("serve", "--data", str(tmp_path / name), *PORTS)
    line = f"duolog: store.directory: {tmp_path}/{name}: Not a directory\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", line)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_in_time_with_status_0_whoever_is_connected(tmp_path: Path, ending: signal.Signals) -> None:
    broker = Broker(tmp_path / "data").start()
    process = broker._process
    assert process is not None
    with socket.create_connection(("127.0.0.1", port_of(broker.kafka))) as client:
        client.sendall(b"\0\0\0\x64half a request")
        process.send_signal(ending)
        assert process.wait(5) == 0
    broker.kill()


def test_hangup_reloads_what_can_be_reloaded_and_names_the_rest(tmp_path: Path) -> None:
    readers, config = tmp_path / "readers.toml", tmp_path / "duolog.toml"
    readers.write_text('"old" = ["*"]\n')
    config.write_text(f'[http]\nreaders_file = "{readers}"\n')
    data = str(tmp_path / "data")
    command = [sys.executable, "-I", "-m", "bridge", "serve", "--config", str(config), "--data", data, *PORTS]
    log = tmp_path / "log"
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout is not None
        ready = process.stdout.readline().decode()
        http = ready.split("http=")[1].split()[0]

        def reload_and_await(line: str) -> None:
            process.send_signal(signal.SIGHUP)
            eventually("a line in the log", log.read_text, lambda text: line in text, 10)

        def lease(token: str) -> int:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
            body = json.dumps({"topics": [], "lease_ms": 1000}).encode()
            asked = urllib.request.Request(f"http://{http}/api/leases", body, headers)
            try:
                return int(urllib.request.urlopen(asked, timeout=5).status)
            except urllib.error.HTTPError as error:
                return error.code

        assert lease("new") == 401
        readers.write_text('"new" = ["*"]\n')
        config.write_text(
            f'[server]\nlog_level = "error"\n[http]\nreaders_file = "{readers}"\n[store]\nflush = "async"\n'
        )
        named = "reloaded=server.log_level:error,http.readers_file:1_tokens need_restart=store.flush\n"
        reload_and_await(f"settings reloaded {named}")
        assert (lease("old"), lease("new") != 401) == (401, True)
        config.write_text("[server]\nlog_levle = 1\n")
        reload_and_await("error bridge reload refused, nothing has changed reason='server.log_levle: no such setting")
        assert lease("new") != 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_damaged_log_is_one_line_that_says_where(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data").start()
    assert duolog("topic", "create", "orders", "--http", broker.http).returncode == 0
    broker.stop()
    for segment in (broker.data / "log").glob("*.log"):
        damaged = bytearray(segment.read_bytes())
        damaged[200] ^= 0xFF
        segment.write_bytes(damaged)
    for derived in broker.data.glob("checkpoint*"):
        derived.unlink()
    refused = duolog("serve", "--data", str(broker.data), *PORTS)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[-1].startswith(f"duolog: store.directory: {broker.data}: ")
    assert "Traceback" not in refused.stderr


def test_admin_commands_and_demo_speak_with_a_running_broker(running: Broker) -> None:
    http = ("--http", running.http)
    assert duolog("topic", "create", "orders", "--queues", "3", *http).stdout == "created orders with 3 queues\n"
    again = duolog("topic", "create", "orders", *http)
    assert (again.returncode, again.stderr) == (1, "duolog: topic orders exists\n")
    assert duolog("topic", "describe", "orders", *http).stdout.count("\n     ") >= 3
    demo = duolog("demo", *http)
    assert (demo.returncode, demo.stderr) == (0, "")
    assert "sent by RocketMQ" in demo.stdout
    unknown = duolog("timer", "cancel", "A" * 24, *http)
    assert (unknown.returncode, unknown.stdout) == (1, "not found\n")
    both = duolog("timer", "cancel", "A" * 24, "--topic", "orders", "--key", "k", *http)
    assert (both.returncode, "expected either an ID, or --topic and --key" in both.stderr) == (2, True)
    made = duolog("timer", "add", "orders", "v", "--in", "0s", *http).stdout
    eventually(
        "a delivery", lambda: duolog("timer", "list", *http).stdout, lambda shown: shown.endswith("0 of 0\n"), 10
    )
    late = duolog("timer", "cancel", made.split()[0], *http)
    assert (late.returncode, late.stdout) == (1, "delivered\n"), "a script must not take it for cancelled"
    for _ in range(2):
        assert duolog("timer", "add", "orders", "v", "--in", "2h", "--key", "k", *http).returncode == 0
    assert duolog("timer", "histogram", *http).stdout.endswith("2 later\n")
    assert duolog("timer", "pause", "orders", *http).stdout == "paused orders\n"
    assert duolog("timer", "list", *http).stdout.endswith("2 of 2; paused: orders\n")
    assert "is_paused: True" in duolog("topic", "describe", "orders", *http).stdout
    by_key = duolog("timer", "cancel", "--topic", "orders", "--key", "k", *http)
    assert by_key.stdout == "cancelled, messages: 2\n"
    assert duolog("schedule", "add", "tick", "orders", "v", "--every", "1h", "--until", "2100-01-01", *http).stdout
    shown = duolog("schedule", "show", "tick", *http).stdout
    assert "value: v\n" in shown
    assert "until: 2" in shown
    assert "None" not in shown
    unknown = duolog("group", "redrive", "nosuch", *http)
    assert (unknown.returncode, unknown.stderr) == (1, "duolog: there is no group nosuch\n")
    assert duolog("topic", "delete", "orders", *http).stdout == "deleted orders\n"
    status = json.loads(urllib.request.urlopen(f"http://{running.http}/api/status", timeout=5).read())
    assert f"cluster_id: {status['cluster_id']}" in duolog("status", *http).stdout


def test_ready_within_a_second_of_its_own_time(tmp_path: Path) -> None:
    """Of processor time, so that a busy machine does not matter.

    Where others have the core's other half, or the hypervisor gives it to them, that time grows, too: so do four times
    what a loop takes which elsewhere takes a quarter of a second.
    """
    loop = "import time\nn = 0\nfor i in range(3_000_000): n += i & 7\nprint(time.process_time())"
    loop_s = float(subprocess.check_output([sys.executable, "-I", "-c", loop]))
    with Broker(tmp_path / "data") as broker:
        fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(") ")[2].split()
        assert (int(fields[11]) + int(fields[12])) / 100 < max(1.0, 4 * loop_s)
        time.sleep(0.2)
        anonymous = next(
            line for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines() if "RssAnon" in line
        )
        assert int(anonymous.split()[1]) < 100_000
