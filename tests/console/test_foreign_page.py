"""Another web page, from another port of this machine, can neither change, read nor frame the console."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.console.conftest import REBOUND, wait_until
from tests.console.contents import ask
from tests.kit.broker import Broker, port_of

HTML = b"""<!doctype html><title>evil</title><body>"""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(HTML)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def foreign() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


FRAME = """(url) => { const frame = document.createElement("iframe"); frame.src = url; document.body.append(frame); }"""
ATTEMPTS = {
    "a form": """(url) => { const form = document.createElement("form"); form.method = "post"; form.action = url;
        form.innerHTML = '<input name="name" value="evil">'; document.body.append(form); form.submit(); }""",
    "a form of plain text": """(url) => { const form = document.createElement("form"); form.method = "post";
        form.action = url; form.enctype = "text/plain"; form.innerHTML = `<input name='{"name":"evil","x":"'
        value='"}'>`; document.body.append(form); form.submit(); }""",
    "a simple request": """(url) => fetch(url, {method: "POST", mode: "no-cors", body: '{"name": "evil"}'}).then(
        () => null, () => null)""",
    "a request of JSON": """(url) => fetch(url, {method: "POST", headers: {"Content-Type": "application/json"},
        body: '{"name": "evil"}'}).then(() => null, () => null)""",
    "a beacon": """(url) => { navigator.sendBeacon(url, new Blob(['{"name": "evil"}'], {type: "text/plain"})); }""",
}


def attempt(page: Page, script: str, url: str) -> None:
    """Let a page send a request to a URL, and wait until the request has ended, in whatever way."""
    ended: list[str] = []
    page.on("requestfinished", lambda request: ended.append(request.url))
    page.on("requestfailed", lambda request: ended.append(request.url))
    page.evaluate(script, url)
    wait_until(page, lambda: url in ended, f"no request to {url} has ended")


@pytest.mark.parametrize("path", ["/console/actions/create-topic", "/api/topics"])
@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_foreign_page_changes_nothing(
    new_context: Callable[..., BrowserContext], broker: Broker, foreign: str, name: str, path: str
) -> None:
    page = new_context().new_page()
    page.goto(foreign)
    attempt(page, ATTEMPTS[name], f"http://{broker.http}{path}")
    assert "evil" not in {row["name"] for row in ask(broker, "GET", "/api/topics")}


def test_the_same_request_from_the_console_itself_would_succeed(
    new_context: Callable[..., BrowserContext], broker: Broker
) -> None:
    page = new_context().new_page()
    page.goto("/")
    page.evaluate(ATTEMPTS["a request of JSON"], f"http://{broker.http}/console/actions/create-topic")
    assert "evil" in {row["name"] for row in ask(broker, "GET", "/api/topics")}
    ask(broker, "DELETE", "/api/topics/evil")


def test_a_foreign_page_reads_and_frames_nothing(
    new_context: Callable[..., BrowserContext], broker: Broker, foreign: str
) -> None:
    page = new_context().new_page()
    page.goto(foreign)
    read = page.evaluate("(url) => fetch(url).then(() => 'read', () => 'refused')", f"http://{broker.http}/")
    assert read == "refused"
    attempt(page, FRAME, f"http://{broker.http}/")
    assert all("Overview" not in (frame.content() or "") for frame in page.frames)


def test_a_name_that_resolves_to_the_broker_is_refused(
    new_context: Callable[..., BrowserContext], broker: Broker
) -> None:
    page = new_context().new_page()
    answer = page.goto(f"http://{REBOUND}:{port_of(broker.http)}/")
    assert answer is not None
    assert answer.status == 403
