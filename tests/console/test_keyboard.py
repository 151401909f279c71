"""The console by keyboard alone: Tab reaches all that can be clicked, in the order of the page, and keys act."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.console.contents import ask, send_half
from tests.console.test_actions import accepting, result
from tests.console.test_pages import address
from tests.kit.broker import Broker

# Names of PAGES: those with actions, and a list of messages.
WITH_ACTIONS = (
    "topics", "topic", "hex", "send", "delayed-topic", "timer", "schedules", "transactions", "group", "dead-letters",
    "settings",
)  # fmt: skip
# Numbers the elements that can be used, and returns how many there are. A closed panel hides those in it.
NUMBER = """() => {
    const found = [...document.querySelectorAll(
        "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
    )].filter((each) => each.checkVisibility());
    found.forEach((each, at) => { each.dataset.number = at; });
    return found.length;
}"""
FOCUSED = "document.activeElement.dataset.number ?? null"


def tab_to(page: Page, name: str) -> None:
    """Press Tab until a button or summary with this text has the focus."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


@pytest.mark.parametrize("name", WITH_ACTIONS)
def test_tab_reaches_all_that_can_be_clicked(page: Page, broker: Broker, name: str) -> None:
    page.goto(address(broker, name))
    page.get_by_label("Live", exact=True).uncheck()
    for panel in page.locator("details.panel > summary").all():
        panel.focus()
        page.keyboard.press("Enter")
    count = page.evaluate(NUMBER)
    page.get_by_text("Skip to the content").focus()
    reached = [page.evaluate(FOCUSED)]
    for _ in range(count - 1):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    assert reached == [str(number) for number in range(count)]


def test_a_topic_is_created_and_deleted_by_keyboard(page: Page, broker: Broker, faults: list[str]) -> None:
    page.goto("/console/topics")
    tab_to(page, "Create a topic")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("typed")
    tab_to(page, "Create")
    page.keyboard.press("Enter")
    result(page, "The topic typed was created.")
    page.goto("/console/topics/typed")
    tab_to(page, "Pause or delete")
    page.keyboard.press("Space")
    tab_to(page, "Delete the topic")
    with accepting(page, "Delete typed?"):
        page.keyboard.press("Space")
    result(page, "The topic typed was deleted.")
    expect(page.locator("#lost")).to_contain_text("status 404")
    faults[:] = [line for line in faults if "404" not in line]
    assert "typed" not in {row["name"] for row in ask(broker, "GET", "/api/topics")}


def test_the_focus_stays_in_the_content_when_an_action_removes_its_button(page: Page, broker: Broker) -> None:
    send_half(broker, "decided by keyboard", "H9")
    page.goto("/console/transactions")
    row = page.locator("#live-part tr", has_text="orders/H9")
    row.get_by_role("button", name="Commit").focus()
    with accepting(page, "Commit this half message?"):
        page.keyboard.press("Enter")
    result(page, "was committed.")
    expect(row).to_have_count(0)
    expect(page.locator("#main")).to_be_focused()
