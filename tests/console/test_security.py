"""With `security.enabled`, a page needs a login and has the rights of its user; a foreign page cannot use the login."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.test_foreign_page import ATTEMPTS, attempt, foreign
from tests.kit.broker import Broker
from tests.kit.command import duolog

__all__ = ["foreign"]  # A fixture.

PASSWORDS = {"root": "root secret", "alice": "alice's"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("secured") / "data"
    for name, options in (("root", ["--super"]), ("alice", [])):
        words = ["user", "add", name, *options, "--password-stdin", "--data", str(data)]
        duolog(*words, given=f"{PASSWORDS[name]}\n")
    with Broker(data, {"security.enabled": "true"}) as running:
        yield running


def topics(broker: Broker) -> set[str]:
    login = base64.b64encode(f"root:{PASSWORDS['root']}".encode()).decode()
    request = urllib.request.Request(f"http://{broker.http}/api/topics", headers={"Authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: list[dict[str, Any]] = json.loads(answer.read())
    return {row["name"] for row in found}


def opened(browser: Browser, broker: Broker, user: str | None) -> Page:
    credentials = None if user is None else {"username": user, "password": PASSWORDS[user]}
    context = browser.new_context(
        base_url=f"http://{broker.http}",
        http_credentials=credentials,  # type: ignore[arg-type]
    )
    return context.new_page()


def test_a_page_without_a_login_is_refused(browser: Browser, secured: Broker) -> None:
    page = opened(browser, secured, None)
    for path in ("/", "/console/topics", "/console/static/console.js"):
        answer = page.request.get(path)
        assert answer.status == 401, path
        assert "Basic" in answer.headers["www-authenticate"]


def test_a_user_with_all_rights_sees_and_does_all(browser: Browser, secured: Broker) -> None:
    page = opened(browser, secured, "root")
    page.goto("/console/topics")
    page.locator("summary", has_text="Create a topic").click()
    page.get_by_label("Name", exact=True).fill("made")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("#result")).to_contain_text("The topic made was created.")
    assert "made" in topics(secured)


def test_a_user_without_rights_sees_and_does_nothing(browser: Browser, secured: Broker) -> None:
    """Lists leave out what she may not describe; other pages are refused."""
    assert topics(secured)
    page = opened(browser, secured, "alice")
    page.goto("/console/topics")
    for name in topics(secured):
        expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    answer = page.goto("/console/settings")
    assert answer is not None
    assert answer.status == 403
    expect(page.get_by_role("alert").first).to_contain_text("alice may not")
    page.goto("/console/send?topic=orders")
    page.get_by_label("Body").fill("x")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#result")).to_contain_text("alice may not")


@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_foreign_page_cannot_use_the_login(browser: Browser, secured: Broker, foreign: str, name: str) -> None:
    page = opened(browser, secured, "root")
    page.goto("/")  # The browser has the login now.
    page.goto(foreign)
    attempt(page, ATTEMPTS[name], f"http://{secured.http}/console/actions/create-topic")
    assert "evil" not in topics(secured)
