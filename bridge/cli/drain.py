"""`duolog drain`: lets the clients of a broker leave, and then stops it."""

import time
from typing import Annotated, Final

import typer

from duolog.bridge.cli.common import AsJson, Http, Refused, length_ms, show_done, writing
from duolog.bridge.cli.http_client import HttpApiError

POLL_S: Final = 0.2
STOP_S: Final = 15.0  # The time for the stop itself; `server.stop_ms` is at most 4 s.


def drain(
    wait: Annotated[str, typer.Option(metavar="TIME", help="the longest time for clients to leave")] = "10s",
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Accept no new connections, wait until all clients have left or the time is over, then stop the broker.

    Requests on open connections are served until the stop. /readyz answers 503 at once, for load balancers.
    """
    wait_ms = length_ms("--wait", wait)
    api = writing(http)
    begun = api.post("/api/drain", {"wait_ms": wait_ms})
    if not as_json:
        typer.echo(f"draining, open connections: {begun['connections']}")
    for _ in range(int((wait_ms / 1000 + STOP_S) / POLL_S)):
        try:
            api.get("/api/status")
        except HttpApiError:
            show_done(begun | {"stopped": True}, "stopped", as_json=as_json)
            return
        time.sleep(POLL_S)
    raise Refused(f"{api.address} still answers; the broker's log says what it waits for")
