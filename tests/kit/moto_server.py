"""moto's S3 server with one request in work at a time: `python -m tests.kit.moto_server PORT`.

By itself moto compares If-None-Match and stores the object in two steps, in several threads: two of eight creates that
race can win, which the self-test of a store notices. Under a lock it is a store that can be relied on.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


class OneAtATime:
    """A WSGI application whose requests wait for each other."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environment: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            return [*self._application(environment, start_response)]


if __name__ == "__main__":
    run_simple(
        "127.0.0.1", int(sys.argv[1]), OneAtATime(DomainDispatcherApplication(create_backend_app)), threaded=True
    )
