"""`duolog doctor`: looks at what a broker with these settings depends on, and says what to change.

Each check returns Findings: `ok`, `warning` for what may be intended, `problem` for what will fail. Whether an
fsync reaches the disk is judged by its time and by the kind of the file system, which is no proof.
"""

import ctypes
import os
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from duolog.bridge.cli import REFUSED
from duolog.bridge.cli.common import (
    AsJson,
    BadOption,
    ConfigFile,
    DataDirectory,
    Overrides,
    local_time,
    show_json,
    show_table,
)
from duolog.bridge.clock import SystemClock

if TYPE_CHECKING:
    from duolog.bridge.config import Options

OK, WARNING, PROBLEM = "ok", "warning", "problem"

SYNCS: Final = 40
SYNC_BYTES: Final = 4096
WRITE_BYTES: Final = 32 << 20
SYNC_MIN_S: Final = 30e-6  # A faster fsync has not waited for any device that keeps its data without power.
SYNC_SLOW_S: Final = 20e-3
WRITE_SLOW_BYTES_S: Final = 20 << 20
YEAR_2024_MS: Final = 1_704_067_200_000
# Kinds of file systems in /proc/mounts that lose their content, or whose fsync depends on a server.
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse"})

_TIME_ERROR: Final = 5  # What adjtimex returns if the kernel's clock is not synchronized.


class Finding(NamedTuple):
    """The outcome of one check. `advice` is empty if nothing need be changed."""

    check: str
    result: str
    found: str
    advice: str = ""


def doctor(
    config: ConfigFile = None,
    data: DataDirectory = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> int:
    """Look at disk, limits, clock, ports and addresses for a broker with these settings; say what to change.

    Writes a file of 32 MiB into the data directory, and removes it. Exit status 1 if there is a problem.
    """
    from duolog.bridge.config import ConfigError, load, parse_override

    try:
        given = dict(map(parse_override, overrides or [])) | ({} if data is None else {"store.directory": data})
        options = load(config, given, os.environ)
    except ConfigError as error:
        raise BadOption(str(error)) from error
    findings = [*_findings(options)]
    if as_json:
        show_json([each._asdict() for each in findings])
    else:
        show_table(("check", "result", "found", "what to change"), findings)
    return REFUSED if any(each.result == PROBLEM for each in findings) else 0


def _findings(options: "Options") -> Iterator[Finding]:
    directory, is_served = _existing(Path(options.store.directory)), _is_served(options.store.directory)
    if directory.is_dir():
        yield from _disk(directory, options)
    else:
        yield Finding("disk", PROBLEM, f"{directory} is a file", "name a directory with --data or store.directory")
    yield judge_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1], options.limits.connections_max)
    yield judge_clock(SystemClock().now_ms(), is_synchronized())
    yield from _ports(options, is_served=is_served)
    yield judge_advertised(options.server.host, options.server.advertise, _resolved)


def _existing(directory: Path) -> Path:
    """Return the path, or the nearest one above it that exists."""
    directory = directory.absolute()
    return next(each for each in (directory, *directory.parents) if each.exists())


def _is_served(directory: str) -> bool:
    from duolog.store.files import LOCK_PATH, ReadOnlyFiles

    files = ReadOnlyFiles(directory)
    try:
        files.close(files.lock_shared(LOCK_PATH))
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


# -- The disk


def _disk(directory: Path, options: "Options") -> Iterator[Finding]:
    usage = os.statvfs(directory)
    used = 1 - usage.f_bavail / max(1, usage.f_blocks)
    yield judge_space(used, usage.f_bavail * usage.f_frsize, options.store.disk_full_ratio)
    kind = file_system(directory, Path("/proc/mounts").read_text() if Path("/proc/mounts").exists() else "")
    try:
        syncs_s, write_bytes_s = _measured(directory / f".duolog-doctor-{os.getpid()}", perf_counter)
    except OSError as error:
        yield Finding("disk", PROBLEM, f"{directory}: {error.strerror}", "let the broker's user write there")
        return
    yield judge_sync(sorted(syncs_s), kind)
    speed = f"{write_bytes_s / 1e6:.0f} MB/s written and synced"
    if write_bytes_s < WRITE_SLOW_BYTES_S:
        yield Finding("disk speed", WARNING, speed, "use a faster disk, or expect as much at most from producers")
    else:
        yield Finding("disk speed", OK, speed)


def _measured(path: Path, seconds: Callable[[], float]) -> tuple[list[float], float]:
    """Return the time of each of SYNCS small writes with fdatasync, and the bytes per second of one large write."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        block = os.urandom(1 << 20)
        begun_s = seconds()
        for at in range(0, WRITE_BYTES, len(block)):
            os.pwrite(file, block, at)
        os.fdatasync(file)
        write_s = seconds() - begun_s
        syncs_s = []
        for number in range(SYNCS):
            os.pwrite(file, block[:SYNC_BYTES], number * SYNC_BYTES)
            begun_s = seconds()
            os.fdatasync(file)
            syncs_s.append(seconds() - begun_s)
        return syncs_s, WRITE_BYTES / max(write_s, 1e-9)
    finally:
        os.close(file)
        with suppress(FileNotFoundError):
            os.remove(path)


def file_system(directory: Path, mounts: str) -> str:
    """Return the kind of the file system of a directory, by the content of /proc/mounts; "" if it is not listed."""
    found, kind = -1, ""
    for line in mounts.splitlines():
        _, place, name, *_ = line.split(" ")
        if directory.is_relative_to(place) and len(place) > found:
            found, kind = len(place), name
    return kind


def judge_space(used: float, free_bytes: int, full_ratio: float) -> Finding:
    """Judge the used share of the disk."""
    found = f"{used:.0%} used, {free_bytes / 1e9:.1f} GB free"
    if used >= full_ratio:
        advice = f"free space: writes are refused above store.disk_full_ratio={full_ratio}"
        return Finding("disk space", PROBLEM, found, advice)
    if used >= full_ratio - 0.1:
        return Finding("disk space", WARNING, found, "free space, or let topics keep less (retention.ms)")
    return Finding("disk space", OK, found)


def judge_sync(syncs_s: list[float], kind: str) -> Finding:
    """Judge whether fsync can be believed, and its time, from ascending times and the kind of the file system."""
    median_s, slowest_s = syncs_s[len(syncs_s) // 2], syncs_s[-1]
    found = f"{median_s * 1e3:.2f} ms, at most {slowest_s * 1e3:.1f} ms" + (f", on {kind}" if kind else "")
    if kind in IN_MEMORY:
        return Finding("fsync", PROBLEM, found, "use a directory on a disk: a restart of the machine loses this one")
    if kind in REMOTE:
        advice = "use a local disk: whether an fsync keeps its promise depends on the server"
        return Finding("fsync", WARNING, found, advice)
    if median_s < SYNC_MIN_S:
        advice = "faster than any disk: a cache or a hypervisor may answer for it, and a power loss lose messages"
        return Finding("fsync", WARNING, found, advice)
    if median_s > SYNC_SLOW_S:
        advice = "one producer that waits for each answer gets no more than this; use more producers or another disk"
        return Finding("fsync", WARNING, found, advice)
    return Finding("fsync", OK, found)


# -- The system


def judge_files(hard_limit: int, connections_max: int) -> Finding:
    """Judge the hard limit of open files, up to which the broker raises its own limit."""
    from duolog.bridge.broker import FILES_BESIDE_CONNECTIONS

    wanted = connections_max + FILES_BESIDE_CONNECTIONS
    is_unlimited = hard_limit == resource.RLIM_INFINITY
    found = f"{'no limit' if is_unlimited else hard_limit}; the settings allow for {wanted}"
    if is_unlimited or hard_limit >= wanted:
        return Finding("open files", OK, found)
    advice = f"raise it (ulimit -Hn, LimitNOFILE=), or lower limits.connections_max={connections_max}"
    return Finding("open files", WARNING, found, advice)


def is_synchronized() -> bool | None:
    """Return whether the kernel's clock is synchronized; None if the system does not tell."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state = libc.adjtimex(ctypes.create_string_buffer(512))  # All zeros: the clock is only read.
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def judge_clock(now_ms: int, synchronized: bool | None) -> Finding:
    """Judge the wall clock, by which messages are delivered and removed."""
    found = local_time(now_ms)
    if now_ms < YEAR_2024_MS:
        return Finding("clock", PROBLEM, found, "set the clock: delays and retention follow it")
    if synchronized is None:
        return Finding("clock", OK, f"{found}; whether it is synchronized is unknown")
    if not synchronized:
        advice = "run a time service, such as chrony: delays and retention follow the clock"
        return Finding("clock", WARNING, f"{found}; not synchronized", advice)
    return Finding("clock", OK, f"{found}; synchronized")


# -- Ports and addresses


def _ports(options: "Options", *, is_served: bool) -> Iterator[Finding]:
    from duolog.bridge.config import ConfigError
    from duolog.bridge.net.addresses import StartError, bind, endpoint

    ports: Mapping[str, int] = {
        "kafka.port": options.kafka.port,
        "rocketmq.port": options.rocketmq.port,
        "rocketmq.namesrv_port": options.rocketmq.namesrv_port,
        "http.port": options.http.port,
    }
    for setting, port in ports.items():
        try:
            bind(options.server.host, port, setting).close()
        except (ConfigError, StartError) as error:
            if is_served:
                yield Finding(setting, OK, f"{endpoint(options.server.host, port)} is in use; a broker is running")
            else:
                yield Finding(setting, PROBLEM, str(error), "stop the other program, or set another port")
        else:
            yield Finding(setting, OK, f"{endpoint(options.server.host, port)} is free")


def _resolved(host: str) -> list[str]:
    """Return the addresses of a host name. Raises OSError."""
    return [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def judge_advertised(host: str, advertise: str, resolve: Callable[[str], list[str]]) -> Finding:
    """Judge the host that answers name to clients, who connect to it after their first request."""
    from duolog.bridge.net.addresses import advertised_host

    named = advertised_host(host, advertise)
    setting = "server.advertise"
    is_local = _is_loopback(host)
    try:
        addresses = resolve(named)
    except OSError as error:
        return Finding(setting, PROBLEM, f"{named}: {error.strerror or error}", "use a name that clients can resolve")
    found = f"{named} is {', '.join(dict.fromkeys(addresses))}"
    if not is_local and all(map(_is_loopback, addresses)):
        advice = "set a name or address by which other machines reach this one"
        return Finding(setting, PROBLEM, f"{found}, which only clients on this machine reach", advice)
    if is_local:
        return Finding(setting, OK, f"{found}; only clients on this machine can connect (server.host={host})")
    return Finding(setting, OK, found)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
