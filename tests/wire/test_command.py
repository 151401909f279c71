"""What scripts build on in `duolog serve`: the ready line, ports, exit statuses, one line for each mistake."""

from __future__ import annotations

import json
import os
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
from kafka import KafkaConsumer

from tests.kit.broker import Broker, port_of
from tests.kit.command import DUOLOG, duolog, run_duolog
from tests.kit.damage import flip
from tests.kit.eventually import eventually

pytestmark = pytest.mark.usefixtures("duolog_only")

PORTS = ("--kafka-port", "0", "--rocketmq-port", "0", "--namesrv-port", "0", "--http-port", "0")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data") as broker:
        yield broker


def test_ready_line_names_the_ports_that_were_free(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", ports=dict.fromkeys(("kafka", "rocketmq", "namesrv", "http"), 0)) as running:
        for endpoint in (running.kafka, running.rocketmq, running.namesrv, running.http):
            assert port_of(endpoint) > 0
            socket.create_connection(("127.0.0.1", port_of(endpoint)), 5).close()
        with urllib.request.urlopen(f"http://{running.http}/readyz", timeout=5) as response:
            assert response.read() == b"ready\n"


def test_serve_says_all_as_json_if_asked(tmp_path: Path) -> None:
    words = [*DUOLOG, "--json", "serve", "--data", str(tmp_path / "data"), *PORTS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            listeners = json.loads(serving.stdout.readline())["listeners"]
            shown = run_duolog("status", "--http", listeners["http"], "--json").stdout
            assert json.loads(shown)["listeners"] == listeners
        finally:
            serving.send_signal(signal.SIGTERM)
        _, lines = serving.communicate(timeout=30)
    assert [json.loads(line)["event"] for line in lines.splitlines()][-1] == "stopped"


def test_second_broker_on_the_same_directory_is_refused(running: Broker) -> None:
    refused = run_duolog("serve", "--data", str(running.data), *PORTS)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(
        f"duolog: store.directory: {running.data}: the data directory is in use by another process"
    )
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["kafka", "rocketmq", "namesrv", "http"])
def test_port_in_use_is_one_line(running: Broker, tmp_path: Path, name: str) -> None:
    taken = str(port_of(getattr(running, name)))
    setting = "rocketmq.namesrv_port" if name == "namesrv" else f"{name}.port"
    refused = run_duolog("serve", "--data", str(tmp_path / "other"), *PORTS, f"--{name}-port", taken)
    line = f"duolog: {setting}: cannot listen on 127.0.0.1:{taken}: Address already in use\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", line)


@pytest.mark.parametrize("name", ["file", "file/data"])
def test_directory_that_cannot_be_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    refused = run_duolog("serve", "--data", str(tmp_path / name), *PORTS)
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


@pytest.mark.parametrize("leaves", [True, False])
def test_drain_serves_who_is_connected_and_ends_with_status_0(tmp_path: Path, leaves: bool) -> None:
    """The drain ends when the client leaves, or after its time."""
    broker = Broker(tmp_path / "data").start()
    process = broker._process
    assert process is not None
    place = ("127.0.0.1", port_of(broker.kafka))
    client = socket.create_connection(place)
    wait_s = 20 if leaves else 2
    command = [*DUOLOG, "drain", "--wait", f"{wait_s}s", "--http", broker.http]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as drain:
        assert drain.stdout is not None
        assert drain.stdout.readline() == "draining, open connections: 1\n"
        with pytest.raises(urllib.error.HTTPError) as not_ready:
            urllib.request.urlopen(f"http://{broker.http}/readyz", timeout=5)
        assert (not_ready.value.code, not_ready.value.read()) == (503, b"draining\n")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place, 5)
        client.sendall(bytes.fromhex("00000010 0012 0000 00000007 0006 637265617465"))  # ApiVersions
        assert client.recv(8)[4:] == bytes.fromhex("00000007")
        if leaves:
            client.close()
        assert drain.stdout.read() == "stopped\n"
        assert drain.wait(10) == 0
    assert process.wait(5) == 0
    client.close()
    broker.kill()
    reason = "all clients have left" if leaves else "the time is over, open connections: 1"
    assert f"'drained, {reason}'" in broker.log.read_text()


def test_hangup_reloads_what_can_be_reloaded_and_names_the_rest(tmp_path: Path) -> None:
    readers, config = tmp_path / "readers.toml", tmp_path / "duolog.toml"
    readers.write_text('"old" = ["*"]\n')
    config.write_text(f'[http]\nreaders_file = "{readers}"\n')
    data = str(tmp_path / "data")
    command = [*DUOLOG, "serve", "--config", str(config), "--data", data, *PORTS]
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
        config.write_text(f'[log]\nlevel = "error"\n[http]\nreaders_file = "{readers}"\n[store]\nflush = "async"\n')
        named = "reloaded=log.level:error,http.readers_file:1_tokens need_restart=store.flush\n"
        reload_and_await(f"settings reloaded {named}")
        assert (lease("old"), lease("new") != 401) == (401, True)
        config.write_text("[log]\nlevle = 1\n")
        reload_and_await("error bridge reload refused, nothing has changed reason='log.levle: no such setting")
        assert lease("new") != 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_level_of_log_lines_changes_while_the_broker_runs_whatever_its_source_is(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", {"log.levels": "net=error"}) as broker:

        def lines_of_a_foreign_request(place: str) -> int:
            """Send HTTP to a client protocol's port, which the component `net` warns of, once a minute for each."""
            before = broker.log.read_text().count("another protocol is spoken")
            with socket.create_connection(("127.0.0.1", port_of(place))) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert client.recv(1) == b""
            return broker.log.read_text().count("another protocol is spoken") - before

        def change(*words: str) -> str:
            return duolog("config", "log-level", *words, "--http", broker.http)

        def levels() -> tuple[object, str]:
            rows = json.loads(duolog("config", "show", "--http", broker.http, "--json"))
            return next((row["value"], row["source"]) for row in rows if row["name"] == "log.levels")

        assert lines_of_a_foreign_request(broker.kafka) == 0
        assert change("net", "default").splitlines()[2:] == ["all others  info"]
        assert "info bridge log level set of=net to=default" in broker.log.read_text()
        assert lines_of_a_foreign_request(broker.rocketmq) == 1
        assert levels() == ("", "run time")
        change("all", "error")
        change("store", "debug")
        assert levels() == ("store=debug", "run time")
        assert run_duolog("config", "log-level", "nett", "debug", "--http", broker.http).returncode == 1
        duolog("config", "reload", "--http", broker.http)
        assert levels() == ("net=error", "command line")


def test_settings_are_checked_and_shown_and_the_log_is_json(tmp_path: Path) -> None:
    config, log = tmp_path / "duolog.toml", tmp_path / "log"
    config.write_text('[log]\nformat = "xml"\n[kafka]\nprot = 9092\n')
    bad = run_duolog("config", "check", str(config))
    assert (bad.returncode, bad.stdout, len(bad.stderr.splitlines())) == (2, "", 2)
    assert "log.format: expected one of text, json" in bad.stderr
    assert f"did you mean kafka.port? `duolog settings` lists them ({config}, line 4)" in bad.stderr
    config.write_text('[log]\nformat = "json"\n[topics]\nqueues = 7\n')
    assert run_duolog("config", "check", str(config)).returncode == 0
    command = [*DUOLOG, "serve", "--config", str(config)]
    command += ["--data", str(tmp_path / "data"), *PORTS, "--set", "log.levels=store=error"]
    environment = os.environ | {
        "DUOLOG_STORE__FLUSH": "async",
        "DUOLOG_TXN__CHECK_URLS": "https://shop.example/s3cret/",
    }

    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as process,
    ):
        assert process.stdout is not None
        http = process.stdout.readline().decode().split("http=")[1].split()[0]

        def shown() -> dict[str, tuple[object, str]]:
            rows = json.loads(run_duolog("config", "show", "--http", http, "--json").stdout)
            return {row["name"]: (row["value"], row["source"]) for row in rows}

        effective = shown()
        assert effective["log.format"] == ("json", "file")
        found = run_duolog("config", "show", "--search", "log.f", "--http", http, "--json").stdout
        assert [row["name"] for row in json.loads(found)] == ["log.format"]
        assert effective["store.flush"] == ("async", "environment")
        assert effective["log.levels"] == ("store=error", "command line")
        assert effective["txn.check_urls"] == ("(hidden)", "environment")
        assert effective["topics.queues_max"] == (1024, "default")
        config.write_text('[log]\nlevel = "warning"\n[topics]\nqueues = 8\n')
        process.send_signal(signal.SIGHUP)
        eventually("the new settings", shown, lambda found: found["log.level"] == ("warning", "file"), 10)
        assert shown()["log.format"] == ("text", "default")
        assert shown()["topics.queues"] == (7, "file"), "it needs a restart"
        config.write_text('[log]\nlevel = "error"\n')
        reloaded = run_duolog("config", "reload", "--http", http)
        assert reloaded.stdout == "reloaded: log.level:error\nneed a restart: topics.queues\n"
        config.write_text("[log]\nlevle = 1\n")
        refused = run_duolog("config", "reload", "--http", http)
        assert (refused.returncode, "nothing has changed: log.levle: no such" in refused.stderr) == (1, True)
        assert shown()["log.level"] == ("error", "file")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    texts = log.read_text().splitlines()
    first, *_ = said = [json.loads(text) for text in texts[:-3]]
    assert "recovered" not in {line["event"] for line in said}, "the component `store` writes errors only"
    assert said[-1]["event"] == "ready"
    assert first.keys() >= {"time", "level", "component", "event", "message"}
    assert texts[-3].endswith("settings reloaded reloaded=log.format:text,log.level:warning need_restart=topics.queues")


def test_damaged_log_is_one_line_that_says_where(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data").start()
    assert run_duolog("topic", "create", "orders", "--http", broker.http).returncode == 0
    broker.stop()
    for segment in (broker.data / "log").glob("*.log"):
        flip(segment, 200)
    for derived in broker.data.glob("checkpoint*"):
        derived.unlink()
    refused = run_duolog("serve", "--data", str(broker.data), *PORTS)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[-1].startswith(f"duolog: store.directory: {broker.data}: ")
    assert "Traceback" not in refused.stderr


def test_admin_commands_and_demo_speak_with_a_running_broker(running: Broker) -> None:
    http, said = ("--http", running.http), f"duolog: broker {running.http}\n"
    assert run_duolog("topic", "create", "orders", "--queues", "3", *http).stdout == "created orders with 3 queues\n"
    again = run_duolog("topic", "create", "orders", *http)
    assert (again.returncode, again.stderr) == (1, f"{said}duolog: topic orders exists\n")
    assert run_duolog("topic", "describe", "orders", *http).stdout.count("\n    ") >= 3
    demo = run_duolog("demo", *http)
    assert (demo.returncode, demo.stderr) == (0, said)
    assert "sent by RocketMQ" in demo.stdout
    steps = json.loads(run_duolog("demo", *http, "--json").stdout)["steps"]
    assert [step["answered"].get("value") for step in steps][1] == steps[0]["asked"]["body"]
    unknown = run_duolog("timer", "cancel", "A" * 24, *http)
    assert (unknown.returncode, unknown.stdout) == (1, "not found\n")
    both = run_duolog("timer", "cancel", "A" * 24, "--topic", "orders", "--key", "k", *http)
    assert (both.returncode, "expected either an ID, or --topic and --key" in both.stderr) == (2, True)
    made = run_duolog("timer", "add", "orders", "v", "--in", "0s", *http).stdout
    eventually(
        "a delivery", lambda: run_duolog("timer", "list", *http).stdout, lambda shown: shown.endswith("0 of 0\n"), 10
    )
    late = run_duolog("timer", "cancel", made.split()[0], *http)
    assert (late.returncode, late.stdout) == (1, "delivered\n"), "a script must not take it for cancelled"
    for _ in range(2):
        assert run_duolog("timer", "add", "orders", "v", "--in", "2h", "--key", "k", *http).returncode == 0
    assert run_duolog("timer", "histogram", *http).stdout.endswith("2 later\n")
    assert run_duolog("timer", "pause", "orders", *http).stdout == "paused orders\n"
    assert run_duolog("timer", "list", *http).stdout.endswith("2 of 2; paused: orders\n")
    assert "is_paused: True" in run_duolog("topic", "describe", "orders", *http).stdout
    by_key = run_duolog("timer", "cancel", "--topic", "orders", "--key", "k", *http)
    assert by_key.stdout == "cancelled, messages: 2\n"
    assert run_duolog("schedule", "add", "tick", "orders", "v", "--every", "1h", "--until", "2100-01-01", *http).stdout
    shown = run_duolog("schedule", "show", "tick", *http).stdout
    assert "value: v\n" in shown
    assert "until: 2" in shown
    assert "None" not in shown
    unknown = run_duolog("group", "redrive", "nosuch", *http)
    assert (unknown.returncode, unknown.stderr) == (1, f"{said}duolog: there is no group nosuch\n")
    assert run_duolog("topic", "delete", "orders", *http).stdout == "deleted orders\n"
    status = json.loads(urllib.request.urlopen(f"http://{running.http}/api/status", timeout=5).read())
    assert f"cluster_id: {status['cluster_id']}" in run_duolog("status", *http).stdout


def test_messages_are_produced_consumed_and_shown(running: Broker) -> None:
    http = ("--http", running.http)
    assert (
        run_duolog("topic", "create", "orders", "--queues", "2", "--config", "retention.ms=7d", *http).returncode == 0
    )
    assert "retention.ms: 604800000" in run_duolog("topic", "describe", "orders", *http).stdout
    sent = run_duolog(
        "produce", "orders", "a", "b", "--key", "k", "--header", "h=x", "--tag", "paid", "--queue", "1", *http
    )
    assert (sent.returncode, sent.stdout) == (0, "orders/1/0\norders/1/1\n")
    later = run_duolog("produce", "orders", "later", "--in", "1h", "--key", "4711", *http)
    assert later.stdout.startswith("orders/")
    read = ("consume", "orders", "--from-beginning", "--timeout", "0s", *http)
    lines = run_duolog(*read).stdout.splitlines()
    assert [line.rpartition("  ")[2] for line in lines] == ["a", "b"]
    assert all("key=k  [h=x TAGS=paid]" in line for line in lines)
    rows = [json.loads(line) for line in run_duolog("--json", *read).stdout.splitlines()]
    assert [(row["topic"], row["queue"], row["offset"], row["value"]) for row in rows] == [
        ("orders", 1, 0, "a"), ("orders", 1, 1, "b"),
    ]  # fmt: skip
    last = run_duolog("consume", "orders", "--tail", "1", "--count", "1", *http)
    assert (last.returncode, last.stdout.rpartition("  ")[2]) == (0, "b\n")
    too_few = run_duolog(*read, "--count", "3")
    assert (too_few.returncode, len(too_few.stdout.splitlines())) == (1, 2)
    assert "duolog: 2 of 3 messages came before --timeout 0s" in too_few.stderr
    assert run_duolog(*read, "--queue", "0").stdout == ""
    shown = run_duolog("message", "show", "orders", "1", "1", *http).stdout
    assert "value: b\n" in shown
    assert run_duolog("message", "show", "orders/1/1", *http).stdout == shown
    gone = run_duolog("message", "show", "orders/1/7", *http)
    assert (gone.returncode, "orders/1" in gone.stderr) == (1, True)
    waiting = run_duolog("timer", "list", *http).stdout
    assert ("4711" in waiting, "later" in waiting) == (True, True)
    assert run_duolog("timer", "now", "--topic", "orders", "--key", "4711", *http).returncode == 0
    eventually("the delayed one", lambda: run_duolog(*read).stdout, lambda text: "later" in text, 10)


def test_input_is_produced_line_by_line(running: Broker) -> None:
    assert run_duolog("topic", "create", "orders", "--queues", "1", "--http", running.http).returncode == 0
    command = [*DUOLOG, "produce", "orders", "--http", running.http]
    lines = "".join(f"line {number}\n" for number in range(2500))
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1] == "orders/0/2499"
    read = run_duolog("consume", "orders", "--from-beginning", "--count", "2500", "--json", "--http", running.http)
    assert [json.loads(line)["value"] for line in read.stdout.splitlines()] == lines.splitlines()


def test_interrupted_consumer_ends_with_what_it_showed(running: Broker) -> None:
    http = ("--http", running.http)
    assert run_duolog("topic", "create", "orders", "--queues", "1", *http).returncode == 0
    assert run_duolog("produce", "orders", "first", *http).returncode == 0
    command = [sys.executable, "-u", "-I", "-m", "duolog.bridge", "consume", "orders", "--tail", "5", *http]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        assert "first" in consumer.stdout.readline()
        assert run_duolog("produce", "orders", "second", *http).returncode == 0
        assert "second" in consumer.stdout.readline()
        consumer.send_signal(signal.SIGINT)
        _, errors = consumer.communicate(timeout=10)
        assert (consumer.returncode, errors) == (0, "")


def test_groups_are_reset_and_deleted_after_a_dry_run(running: Broker) -> None:
    http = ("--http", running.http)
    assert run_duolog("topic", "create", "orders", "--queues", "1", *http).returncode == 0
    assert run_duolog("produce", "orders", "a", "b", "c", *http).returncode == 0
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=running.kafka, group_id="billing", auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"a"
    consumer.commit()
    refused = run_duolog("group", "reset", "billing", "--to", "latest", "--execute", *http)
    assert (refused.returncode, "has members in kafka: stop them" in refused.stderr) == (1, True)
    consumer.close(autocommit=False)
    shown = run_duolog("group", "reset", "billing", "--to", "earliest", *http)
    assert (shown.returncode, shown.stdout.split()[-4:]) == (0, ["orders", "0", "1", "0"])
    assert shown.stderr == "duolog: nothing was changed; add --execute to do it\n"
    position = json.loads(run_duolog("group", "describe", "billing", "--json", *http).stdout)["positions"][0][
        "position"
    ]
    assert position == 1
    assert run_duolog("group", "reset", "billing", "--to-offset", "2", "--yes", *http).returncode == 0
    position = json.loads(run_duolog("group", "describe", "billing", "--json", *http).stdout)["positions"][0][
        "position"
    ]
    assert position == 2
    assert run_duolog("group", "delete", "billing", *http).stdout == "would delete billing with 1 positions\n"
    assert run_duolog("group", "delete", "billing", "--yes", *http).stdout == "deleted billing with 1 positions\n"
    assert run_duolog("group", "describe", "billing", *http).returncode == 1


def test_listings_say_which_broker_and_cut_no_names(running: Broker) -> None:
    name = "n" * 120
    assert run_duolog("topic", "create", name, "--http", running.http).returncode == 0
    listed = run_duolog("topic", "list", "--http", running.http)
    assert [line for line in listed.stdout.splitlines() if line.startswith(name + " ")]
    assert "SCHEDULE_TOPIC_XXXX" not in listed.stdout
    assert name in run_duolog("topic", "list", "--search", "NNNN", "--http", running.http).stdout
    assert name not in run_duolog("topic", "list", "--search", "no-such", "--http", running.http).stdout
    assert "topics of the broker's own are not shown; --all shows them" in listed.stderr
    assert "SCHEDULE_TOPIC_XXXX" in run_duolog("--url", f"http://{running.http}/", "topic", "list", "--all").stdout
    command = [*DUOLOG, "group", "list", "--json"]
    by_variable = subprocess.run(
        command, env=os.environ | {"DUOLOG_HTTP": running.http}, capture_output=True, text=True, timeout=30, check=True
    )
    assert (json.loads(by_variable.stdout), by_variable.stderr) == (
        [],
        f"duolog: broker {running.http} (DUOLOG_HTTP)\n",
    )


@pytest.mark.alone
def test_ready_within_a_second_of_its_own_time(tmp_path: Path) -> None:
    """The start takes at most a second of processor time, which a busy machine does not lengthen.

    Processor time grows all the same where hyper-threading or a hypervisor shares the core. So the limit is four times
    the processor time of a loop, which takes a quarter of a second on a core that is not shared, if that is more.
    """
    loop = "import time\nn = 0\nfor i in range(3_000_000): n += i & 7\nprint(time.process_time())"
    loop_s = float(subprocess.check_output([sys.executable, "-I", "-c", loop]))
    with Broker(tmp_path / "data", command=DUOLOG) as broker:
        fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(") ")[2].split()
        assert (int(fields[11]) + int(fields[12])) / 100 < max(1.0, 4 * loop_s)
        time.sleep(0.2)
        anonymous = next(
            line for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines() if "RssAnon" in line
        )
        assert int(anonymous.split()[1]) < 100_000
