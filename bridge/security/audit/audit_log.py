"""What the audit log says. It never has a password, a token, a payload, or a header of a message.

    login     each login that was tried: protocol, mechanism, principal, address, result, reason of a failure
    refusal   each resource that was refused: principal, address, operation, resource, request, the rule that decided
    change    each administrative request that was allowed, before its handler runs: principal, address, request, and
              the resources and operations that the request has declared
    left_out  lines of a kind that were left out, because `security.audit_lines_max` in a second was reached, or because
              the lines that wait for the disk had `security.audit_queue_bytes`

Lines go to `security.audit_file` as JSON, one object a line, or to the logger `audit`. Each kind has its own limit, so
that a flood of refusals hides no change. Texts of clients are cut to TEXT_MAX characters. Counters count all.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Protocol

from duolog.bridge.clock import Clock
from duolog.bridge.config import SecurityOptions
from duolog.bridge.security.authorizer import Authorizer
from duolog.bridge.security.needs import Need
from duolog.bridge.security.rules import USER, Operation
from duolog.bridge.security.session import Session

log = logging.getLogger("audit")

KINDS: Final = ("login", "refusal", "change")
CHANGES: Final = frozenset(
    {Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS, Operation.CLUSTER_ACTION}
)
"""A request that needs one of these operations is administrative."""
WINDOW_MS: Final = 1000
TEXT_MAX: Final = 255
RESOURCES_MAX: Final = 20  # In the line of one change; the line says how many more there were.


class Sink(Protocol):
    """Takes finished lines without blocking."""

    def write(self, line: bytes) -> bool:
        """Take a line; False: there is no room for it."""

    def reopen(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def lost_lines(self) -> int: ...


class AuditLog:
    """Writes lines and counts."""

    def __init__(self, options: SecurityOptions, clock: Clock, authorizer: Authorizer) -> None:
        self._lines_max, self._clock, self._authorizer = options.audit_lines_max, clock, authorizer
        self.sink: Sink | None = None  # None: lines go to the logger.
        # By (protocol, mechanism, result) and by protocol; mechanisms are names of the broker.
        self.logins: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self.refusals: defaultdict[tuple[str], int] = defaultdict(int)
        self._written = self._all_left_out = 0
        self._window_mono_ms = 0  # The beginning of the second to which `_taken` belongs.
        self._taken = dict.fromkeys(KINDS, 0)
        self._left_out = dict.fromkeys(KINDS, 0)

    # -- Events

    def login(self, protocol: str, mechanism: str, name: str, address: str, failure: str = "") -> None:
        """Note a login: it has failed for this reason, or has succeeded."""
        result = "failure" if failure else "success"
        self.logins[protocol, mechanism, result] += 1
        if not self._takes("login"):
            return
        principal = f"{USER}{name[:TEXT_MAX]}"
        if self.sink is None:
            log.info(
                "login protocol=%s mechanism=%s principal=%s address=%s result=%s reason=%r",
                protocol, mechanism, principal, address, result, failure[:TEXT_MAX],
            )  # fmt: skip
            return
        line = {"protocol": protocol, "mechanism": mechanism, "principal": principal, "address": address}
        self._write("login", line | {"result": result} | ({"reason": failure[:TEXT_MAX]} if failure else {}))

    def refused(self, protocol: str, session: Session, request: str, needs: Iterable[Need]) -> None:
        """Note that resources were refused to a request."""
        for need in needs:
            self.refusals[protocol,] += 1
            if self._takes("refusal"):
                self._refused(protocol, session, request, need)

    def _refused(self, protocol: str, session: Session, request: str, need: Need) -> None:
        rule, request = self._deciding(session, need), request[:TEXT_MAX]
        principal, name = session.principal[:TEXT_MAX], (need.name or "")[:TEXT_MAX]
        operation, resource = need.operation.name.lower(), need.resource_type.name.lower()
        if self.sink is None:
            log.info(
                "refusal protocol=%s principal=%s address=%s request=%s operation=%s resource=%s name=%s rule=%r",
                protocol, principal, session.host, request, operation, resource, name, rule,
            )  # fmt: skip
            return
        line = {"protocol": protocol, "principal": principal, "address": session.host, "request": request}
        self._write("refusal", line | {"operation": operation, "resource": resource, "name": name, "rule": rule})

    def _deciding(self, session: Session, need: Need) -> str:
        """Return the words of the rule that has refused a need."""
        if not self._authorizer.is_valid(session):
            return session.end[:TEXT_MAX]
        denying = None
        if need.name is not None:
            denying = self._authorizer.denying(session, need.resource_type, need.name, need.operation)
        return "no rule allows it" if denying is None else f"{denying.words} from {denying.host}"[:TEXT_MAX]

    def changed(self, protocol: str, session: Session, request: str, needs: Iterable[Need]) -> None:
        """Note an administrative request that was allowed."""
        if not self._takes("change"):
            return
        every = iter(needs)
        resources = [
            {
                "operation": operation.name.lower(),
                "resource": resource_type.name.lower(),
                "name": (name or "")[:TEXT_MAX],
            }
            for resource_type, name, operation in islice(every, RESOURCES_MAX)
        ]
        more = sum(1 for _ in every)
        principal = session.principal[:TEXT_MAX]
        if self.sink is None:
            words = " ".join(f"{each['operation']}:{each['resource']}:{each['name']}" for each in resources)
            log.info(
                "change protocol=%s principal=%s address=%s request=%s resources=%r more=%d",
                protocol, principal, session.host, request[:TEXT_MAX], words, more,
            )  # fmt: skip
            return
        line: dict[str, Any] = {"protocol": protocol, "principal": principal, "address": session.host}
        line |= {"request": request[:TEXT_MAX], "resources": resources}
        self._write("change", line | ({"more_resources": more} if more else {}))

    # -- The file

    def reopen(self) -> None:
        """Open the file of the lines again, if there is one."""
        if self.sink is not None:
            self.sink.reopen()

    def stop(self) -> None:
        """Write the lines that wait, for a bounded time."""
        if self.sink is not None:
            self.sink.stop()

    def counts(self) -> dict[tuple[str], int]:
        """Return the lines that were written or handed to the file, left out, and lost because the disk failed."""
        lost = 0 if self.sink is None else self.sink.lost_lines
        return {("written",): self._written - lost, ("left_out",): self._all_left_out, ("lost",): lost}

    # -- Limits

    def next_deadline_mono_ms(self) -> int | None:
        """Return when `report` has something to say; None: nothing was left out."""
        return self._window_mono_ms + WINDOW_MS if any(self._left_out.values()) else None

    def report(self, mono_ms: int) -> None:
        """Write how many lines of each kind were left out, once their second is over."""
        if mono_ms - self._window_mono_ms < WINDOW_MS:
            return
        self._window_mono_ms = mono_ms
        self._taken = dict.fromkeys(KINDS, 0)
        for kind, count in self._left_out.items():
            if count:
                self._left_out[kind] = 0
                if self.sink is None:
                    log.info("audit lines left out kind=%s count=%d", kind, count)
                elif not self._give("left_out", {"kind": kind, "count": count}):
                    self._left_out[kind] = count

    def _takes(self, kind: str) -> bool:
        mono_ms = self._clock.mono_ms()
        if mono_ms - self._window_mono_ms >= WINDOW_MS:
            self.report(mono_ms)
        if self._taken[kind] >= self._lines_max:
            self._leave_out(kind)
            return False
        self._taken[kind] += 1
        self._written += self.sink is None
        return True

    def _leave_out(self, kind: str) -> None:
        self._left_out[kind] += 1
        self._all_left_out += 1

    def _write(self, kind: str, line: dict[str, Any]) -> None:
        if self._give(kind, line):
            self._written += 1
        else:
            self._leave_out(kind)

    def _give(self, kind: str, line: dict[str, Any]) -> bool:
        assert self.sink is not None
        seconds, ms = divmod(self._clock.now_ms(), 1000)
        time = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"
        text = json.dumps({"time": time, "event": kind, **line}, separators=(",", ":"))
        return self.sink.write(text.encode("ascii") + b"\n")
