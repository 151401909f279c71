"""moto's S3 server, which handles one request at a time: `python -m tests.kit.moto_server PORT`.

Without this lock, several threads of moto check If-None-Match and store the object in two steps, so that two of eight
concurrent creates can succeed. The self-test of a store detects this and refuses the store.
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
