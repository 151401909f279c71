"""The program of the external watchdog: a child process that disconnects the clients of a broker that stands still.

    python -I -S watchdog_child.py PID FILE PORT...

Its standard input is a socket from `external_watchdog.py`. Each heartbeat of the broker is a decimal number: the
milliseconds within which the next heartbeat must come. If it does not come, the child shuts down all sockets of the
process PID that are bound to one of the ports. The end of the input means that the broker has ended. FILE is the
broker's end of the socket; with it, the child tests whether it may copy sockets of the broker.

    first heartbeat of the broker ──> permission tested ──> "ready", or "refused ..." and the end
    no heartbeat in time          ──> sockets shut down ──> "disconnected COUNT", then nothing until the next one

The program imports little, because each module costs memory: 12 MB are resident, of which 5 MB are not shared with the
broker's interpreter. It keeps no socket of the broker. `pidfd_getfd` needs Linux 5.6.
"""

import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Collection
from typing import Final

SLICE_MS: Final = 100
MESSAGE_BYTES: Final = 256
PIDFD_GETFD: Final = 438  # The number of this system call on all architectures but Alpha.
PR_SET_PDEATHSIG: Final = 1
PR_SET_PTRACER: Final = 0x59616D61
FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


def allow_access_by(pid: int) -> None:
    """Allow a child to copy sockets of this process where Yama's `ptrace_scope` is 1; elsewhere this has no effect."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def copy_file(pidfd: int, file: int) -> int:
    """Return a copy of a file descriptor of another process. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    copied = int(libc.syscall(PIDFD_GETFD, pidfd, file, 0))
    if copied < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"pidfd_getfd: {os.strerror(number)}")
    return copied


class BrokerSockets:
    """The sockets of the process `pid` that are bound to `ports`, as long as nothing is heard on `heartbeats`."""

    def __init__(self, pid: int, ports: Collection[int], heartbeats: socket.socket) -> None:
        self._pid, self._pidfd = pid, os.pidfd_open(pid)
        self._ports = ports
        self._poll = select.poll()
        self._poll.register(heartbeats, select.POLLIN)

    def test(self, file: int) -> None:
        """Raise OSError if this process may not copy sockets of the broker."""
        os.listdir(f"/proc/{self._pid}/fd")
        os.close(copy_file(self._pidfd, file))

    def shut_down(self) -> int:
        """Shut down the sockets, and return their number. Stops as soon as the broker is heard, or has ended."""
        count = 0
        for name in os.listdir(f"/proc/{self._pid}/fd"):
            try:
                if os.readlink(f"/proc/{self._pid}/fd/{name}").startswith("socket:"):
                    count += self._shut_down_one(int(name))
            except OSError:
                continue  # The broker goes on, and has closed it; or it is neither connected nor listening.
            if self._poll.poll(0):
                break
        return count

    def _shut_down_one(self, file: int) -> bool:
        """Shut down a socket that is bound to one of the ports, and return whether it was.

        Raises OSError if the socket is neither connected nor listening, as that of a port that refuses connections. A
        shutdown of such a socket would also apply to the connections that it accepts later.
        A broker that begins again executes its program anew, with the same process id. The end of the old program is
        seen on `heartbeats` before the new one opens its first socket, so no socket of the new one is shut down.
        """
        with socket.socket(fileno=copy_file(self._pidfd, file)) as copied:
            if copied.family not in FAMILIES or copied.getsockname()[1] not in self._ports or self._poll.poll(0):
                return False
            if not copied.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                copied.getpeername()
            copied.shutdown(socket.SHUT_RDWR)
            return True


def watch(heartbeats: socket.socket, broker_sockets: BrokerSockets, left_ms: int) -> None:
    """Shut down the sockets each time that no heartbeat comes in time; return at the end of the broker.

    The time is counted in slices instead of being read from a clock, so that a pause of the whole machine is one slice.
    """
    poll = select.poll()
    poll.register(heartbeats, select.POLLIN)
    while True:
        slice_ms = min(left_ms, SLICE_MS) if left_ms > 0 else None
        if poll.poll(slice_ms):
            heartbeat = heartbeats.recv(MESSAGE_BYTES)
            if not heartbeat:
                return
            left_ms = int(heartbeat)
        elif slice_ms is not None:
            left_ms -= slice_ms
            if left_ms <= 0:
                heartbeats.send(b"disconnected %d" % broker_sockets.shut_down())


def main(pid: int, file: int, *ports: int) -> None:
    """Watch the process `pid` until it ends. The signals that end a broker are for the broker."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=0) as heartbeats:
        heartbeat = heartbeats.recv(MESSAGE_BYTES)  # Permission is given before the first heartbeat.
        if not heartbeat:
            return
        try:
            broker_sockets = BrokerSockets(pid, ports, heartbeats)
            broker_sockets.test(file)
        except OSError as error:
            heartbeats.send(f"refused {error.strerror or error}".encode())
            return
        heartbeats.send(b"ready")
        watch(heartbeats, broker_sockets, int(heartbeat))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
