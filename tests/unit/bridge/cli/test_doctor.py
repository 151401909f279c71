"""`duolog doctor`: what each check says for what it finds, and the whole command on a real directory."""

import json
import resource
import socket
from pathlib import Path

import pytest

from duolog.bridge.cli.data_directory import doctor
from duolog.bridge.cli.data_directory.doctor import OK, PROBLEM, WARNING
from duolog.store.files import LOCK_PATH, RealFiles
from tests.unit.bridge.cli.test_main import run

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
server:/export /data nfs4 rw 0 0
/dev/sdb1 /data/log xfs rw 0 0
"""
NOW_MS = 1_790_000_000_000


@pytest.mark.parametrize(
    ("directory", "kind"),
    [("/var/lib", "ext4"), ("/dev/shm/x", "tmpfs"), ("/data", "nfs4"), ("/data/log", "xfs"), ("/data/logs", "nfs4")],
)
def test_file_system_is_that_of_the_longest_mount_point(directory: str, kind: str) -> None:
    assert doctor.file_system(Path(directory), MOUNTS) == kind


@pytest.mark.parametrize(
    ("median_s", "kind", "result", "says"),
    [
        (0.002, "ext4", OK, ""),
        (0.002, "tmpfs", PROBLEM, "use a directory on a disk"),
        (0.002, "nfs4", WARNING, "use a local disk"),
        (0.000_005, "ext4", WARNING, "faster than any disk"),
        (0.05, "ext4", WARNING, "use more producers or another disk"),
    ],
)
def test_fsync_is_judged_by_its_time_and_the_file_system(median_s: float, kind: str, result: str, says: str) -> None:
    finding = doctor.judge_sync([median_s / 2, median_s, median_s * 2], kind)
    assert finding.result == result
    assert says in finding.advice


@pytest.mark.parametrize(("used", "result"), [(0.5, OK), (0.9, WARNING), (0.96, PROBLEM)])
def test_disk_space_is_judged_by_the_ratio_above_which_writes_are_refused(used: float, result: str) -> None:
    assert doctor.judge_space(used, 1 << 30, 0.95).result == result


def test_open_files_must_suffice_for_all_connections() -> None:
    assert doctor.judge_files(1024, 10_000).result == WARNING
    assert "limits.connections_max=10000" in doctor.judge_files(1024, 10_000).advice
    assert doctor.judge_files(100_000, 10_000).result == OK
    assert doctor.judge_files(resource.RLIM_INFINITY, 10_000).result == OK


@pytest.mark.parametrize(
    ("now_ms", "synchronized", "result"),
    [(NOW_MS, True, OK), (NOW_MS, None, OK), (NOW_MS, False, WARNING), (86_400_000, True, PROBLEM)],
)
def test_clock(now_ms: int, synchronized: bool | None, result: str) -> None:
    assert doctor.judge_clock(now_ms, synchronized).result == result


def _resolve(host: str) -> list[str]:
    if host == "nowhere.example":
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return ["127.0.1.1"] if host == "localhost.example" else ["192.0.2.7"]


@pytest.mark.parametrize(
    ("host", "advertise", "result", "says"),
    [
        ("0.0.0.0", "broker.example", OK, ""),
        ("192.0.2.7", "", OK, ""),
        ("127.0.0.1", "localhost.example", OK, ""),
        ("0.0.0.0", "localhost.example", PROBLEM, "by which other machines reach this one"),
        ("0.0.0.0", "nowhere.example", PROBLEM, "use a name that clients can resolve"),
    ],
)
def test_advertised_host_must_be_one_that_clients_reach(host: str, advertise: str, result: str, says: str) -> None:
    finding = doctor.judge_advertised(host, advertise, _resolve)
    assert finding.result == result
    assert says in finding.advice


# -- The command


@pytest.fixture
def taken(tmp_path: Path) -> tuple[Path, int]:
    """Return a config file whose Kafka port another program has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = tmp_path / "duolog.toml"
        config.write_text(
            f"[kafka]\nport = {port}\n[rocketmq]\nport = 0\nnamesrv_port = 0\n[http]\nport = 0\n"
            f'[store]\ndirectory = "{tmp_path / "data"}"\n'
        )
        yield config, port


def test_a_port_of_another_program_is_a_problem(
    taken: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, port = taken
    status, out, _ = run(f"doctor --config {config} --json", capsys)
    found = {row["check"]: row for row in json.loads(out)}
    assert status == 1
    assert found["kafka.port"]["result"] == PROBLEM
    assert f"127.0.0.1:{port}" in found["kafka.port"]["found"]
    assert found["http.port"]["result"] == OK
    assert {"disk space", "fsync", "disk speed", "open files", "clock", "server.advertise"} <= found.keys()
    assert [path.name for path in tmp_path.iterdir()] == ["duolog.toml"]  # Nothing is left behind.


def test_a_file_in_place_of_the_data_directory_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for directory in ("file", "file/data"):
        words = "--set kafka.port=0 --set rocketmq.port=0 --set rocketmq.namesrv_port=0 --set http.port=0 --json"
        status, out, _ = run(f"doctor --data {tmp_path / directory} {words}", capsys)
        found = {row["check"]: row for row in json.loads(out)}
        assert (status, found["disk"]["result"]) == (1, PROBLEM)
        assert found["disk"]["found"] == f"{tmp_path / 'file'} is a file"
        assert found["http.port"]["found"] == "127.0.0.1:0 is free"


def test_ports_of_a_running_broker_are_no_problem(
    taken: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = RealFiles(str(tmp_path / "data"))
    lock = files.lock(LOCK_PATH)
    _, out, _ = run(f"doctor --config {taken[0]} --json", capsys)
    files.close(lock)
    found = {row["check"]: row for row in json.loads(out)}
    assert found["kafka.port"]["result"] == OK
    assert "a broker is running" in found["kafka.port"]["found"]
