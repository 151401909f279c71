"""A broker with some of everything, and a browser: Debian's Chromium, driven by Playwright.

`make test-console` runs these tests. The tests are skipped where there is no Chromium on the PATH.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Response, sync_playwright

from duolog.bridge.console.pages import PAGES
from tests.console.contents import ask, fill, set_aside_records, write_schemas
from tests.kit.broker import Broker
from tests.kit.lacking import skip_or_fail

NAMES = ("chromium", "chromium-browser", "google-chrome")
REBOUND = "evil.example"  # A name of another owner, which resolves to this machine.
ARGUMENTS = ["--no-sandbox", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"]
STEP_MS = 10_000  # The time within which a page must show what is expected.
ACTIONS_PATH = "/console/actions/"
TURN_MS = 20  # Playwright handles events of the browser in this time.


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker with topics, messages, delayed messages, schedules, groups and transactions (`contents.fill`)."""
    with tempfile.TemporaryDirectory(prefix="duolog-console-", ignore_cleanup_errors=True) as folder:
        data, schemas = Path(folder) / "data", Path(folder) / "schemas"
        set_aside_records(data)
        write_schemas(schemas)
        with (
            Broker(data, {"store.flush": "async", "http.schemas_directory": schemas}) as running,
            fill(running),
        ):
            yield running
            assert "faults" not in {row["kind"] for row in ask(running, "GET", "/api/warnings")}, running.log_tail()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        skip_or_fail(f"no browser: none of {', '.join(NAMES)} is on the PATH")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


def wait_until(page: Page, is_true: Callable[[], bool], what: str, within_ms: int = STEP_MS) -> None:
    """Wait until a condition is true, while events of the browser are handled."""
    deadline = time.monotonic() + within_ms / 1000
    while not is_true():
        assert time.monotonic() < deadline, what
        page.wait_for_timeout(TURN_MS)


def processor_s(broker: Broker) -> float:
    """Return the processor time that the broker has used."""
    found = psutil.Process(broker.pid).cpu_times()
    return found.user + found.system


class Faults(list[str]):
    """What a page wrote to the browser's console, and its exceptions."""

    def watch(self, page: Page) -> None:
        page.on("console", lambda line: self.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.append(str(error)))


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def new_context(browser: Browser, broker: Broker) -> Iterator[Callable[..., BrowserContext]]:
    """Return a function that opens a window of the browser; paths are those of the broker."""
    opened: list[BrowserContext] = []

    def new(width: int = 1280, theme: str = "light") -> BrowserContext:
        context = browser.new_context(
            base_url=f"http://{broker.http}",
            viewport={"width": width, "height": 900},
            color_scheme=theme,  # type: ignore[arg-type]
        )
        context.set_default_timeout(STEP_MS)
        opened.append(context)
        return context

    yield new
    for context in opened:
        context.close()


class Done(set[str]):
    """The actions that a page has asked the broker for, and that it did, as `page: action`."""

    def watch(self, page: Page) -> None:
        page.on("response", self._add)

    def _add(self, response: Response) -> None:
        path = urlsplit(response.url).path
        if not path.startswith(ACTIONS_PATH) or response.status != 200:
            return
        if "preview" not in json.loads(response.request.post_data or "{}"):
            self.add(f"{page_name(response.request.headers['hx-current-url'])}: {path.removeprefix(ACTIONS_PATH)}")


def page_name(url: str) -> str:
    """Return the name in PAGES of the function that makes the page at this URL."""
    path = urlsplit(url).path
    parent = path.rpartition("/")[0]
    return PAGES[path if path in PAGES else f"{parent}/{{name}}"].__name__


@pytest.fixture
def page(new_context: Callable[..., BrowserContext], faults: Faults, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page whose errors fail the test, as does an action of its mark `clicks` that was not done."""
    opened, done = new_context().new_page(), Done()
    faults.watch(opened)
    done.watch(opened)
    yield opened
    assert not faults, "\n".join(faults)
    mark = request.node.get_closest_marker("clicks")
    assert mark is None or done == set(mark.args), f"done: {sorted(done)}"
