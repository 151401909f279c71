"""Each action of a page, clicked in a real browser, changes the broker; each shows the command that does the same.

The mark `clicks` of a test names what it clicks, as `page: action`; the fixture `page` asks that it did. The last test
here asks that all actions of all templates are among them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Dialog, Page, expect

from duolog.bridge.console.actions import ACTIONS
from duolog.bridge.console.pages import PAGES
from duolog.bridge.console.rendering import TEMPLATES
from tests.console.conftest import wait_until
from tests.console.contents import HOUR_MS, add_dead_letter, ask, send_half, set_aside_records
from tests.kit.broker import Broker

clicks = pytest.mark.clicks


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    name = "acted"
    ask(broker, "POST", "/api/topics", {"name": name, "queues": 1})
    yield name
    if any(row["name"] == name for row in ask(broker, "GET", "/api/topics")):
        ask(broker, "DELETE", f"/api/topics/{name}")


def open_panel(page: Page, title: str) -> None:
    page.locator("summary", has_text=title).click()


def result(page: Page, text: str) -> None:
    expect(page.locator("#result")).to_contain_text(text)


@contextmanager
def accepting(page: Page, *words: str) -> Iterator[None]:
    """Accept the question that is asked within the context; it must have these words."""
    asked: list[str] = []

    def accept(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    page.once("dialog", accept)
    yield
    wait_until(page, lambda: bool(asked), "nothing was asked")
    assert all(word in asked[0] for word in words), asked[0]


@clicks(
    "topics: create-topic", "topic: configure-topic", "topic: pause-topic", "topic: resume-topic",
    "topic: delete-topic",
)  # fmt: skip
def test_create_configure_pause_and_delete_a_topic(page: Page, broker: Broker, faults: list[str]) -> None:
    page.goto("/console/topics")
    open_panel(page, "Create a topic")
    page.get_by_label("Name", exact=True).fill("clicked")
    page.get_by_label("Queues").fill("3")
    page.get_by_role("button", name="Only show the command").click()
    result(page, "duolog topic create clicked --queues 3")
    page.get_by_role("button", name="Create", exact=True).click()
    result(page, "The topic clicked was created.")
    expect(page.locator("#live-part tbody")).to_contain_text("clicked")
    page.get_by_role("link", name="clicked", exact=True).click()
    open_panel(page, "Change configs")
    page.get_by_label("Configs, one a line").fill("retention.ms=1h")
    page.get_by_role("button", name="Change", exact=True).click()
    result(page, "The configs of clicked were changed.")
    expect(page.locator("#live-part")).to_contain_text("3600000")
    open_panel(page, "Pause or delete")
    page.get_by_role("button", name="Pause deliveries").click()
    expect(page.locator("#live-part")).to_contain_text("paused")
    page.get_by_role("button", name="Resume deliveries").click()
    result(page, "go on")
    page.get_by_role("button", name="Delete the topic").click()  # Playwright answers no.
    assert "clicked" in {row["name"] for row in ask(broker, "GET", "/api/topics")}
    with accepting(page, "Delete clicked?", "its pending messages and the offsets of groups in it are gone for good"):
        page.get_by_role("button", name="Delete the topic").click()
    result(page, "The topic clicked was deleted.")
    assert "clicked" not in {row["name"] for row in ask(broker, "GET", "/api/topics")}
    expect(page.locator("#lost")).to_contain_text("status 404")
    faults[:] = [line for line in faults if "404" not in line]


def test_an_error_is_shown(page: Page, faults: list[str]) -> None:
    page.goto("/console/topics")
    open_panel(page, "Create a topic")
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_role("button", name="Create", exact=True).click()
    result(page, "Not done.")
    faults[:] = [line for line in faults if "409" not in line]


@clicks("send: send-message")
def test_send_a_message_and_a_delayed_one(page: Page, broker: Broker, topic: str) -> None:
    page.goto(f"/console/send?topic={topic}")
    page.get_by_label("Body").fill("sent by a form")
    page.get_by_label("Key").fill("k1")
    page.get_by_label("Tag").fill("paid")
    page.get_by_label("Headers").fill("trace=7")
    page.get_by_role("button", name="Send", exact=True).click()
    result(page, "The message was sent")
    (message,) = ask(broker, "GET", f"/api/topics/{topic}/messages")["messages"]
    assert (message["value"], message["key"], message["tag"]) == ("sent by a form", "k1", "paid")
    assert message["headers"]["trace"] == "7"
    page.get_by_label("Deliver in").fill("1h")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#result")).to_contain_text("due_ms")
    assert ask(broker, "GET", f"/api/timers/count?topic={topic}") == {"count": 1}


def delay(broker: Broker, topic: str, *keys: str) -> dict[str, str]:
    """Send a delayed message of each key; return their ids by key."""
    message = {"topic": topic, "delay_ms": HOUR_MS}
    return {key: ask(broker, "POST", "/api/timers", message | {"value": key, "key": key})["id"] for key in keys}


def pending(broker: Broker, topic: str) -> dict[str, int]:
    """Return the due times of the pending messages of a topic by key."""
    rows = ask(broker, "GET", f"/api/timers?topic={topic}&content=true")["timers"]
    return {row["key"]: row["due_ms"] for row in rows}


def values_in(broker: Broker, topic: str) -> list[str]:
    return [each["value"] for each in ask(broker, "GET", f"/api/topics/{topic}/messages")["messages"]]


@clicks("delayed: deliver-timer", "delayed: cancel-timer", "delayed: reschedule-key", "delayed: cancel-key")
def test_deliver_reschedule_and_cancel_in_the_list_of_delayed_messages(page: Page, broker: Broker, topic: str) -> None:
    delay(broker, topic, "one", "two", "three", "four")
    page.goto(f"/console/delayed?topic={topic}")
    page.locator("#live-part tr", has_text="one").get_by_role("button", name="Now").click()
    result(page, "rescheduled: the pending message")
    with accepting(page, "Cancel this message?", "It will never be delivered."):
        page.locator("#live-part tr", has_text="two").get_by_role("button", name="Cancel").click()
    result(page, "cancelled: the pending message")
    expect(page.locator("#live-part tr", has_text="two")).to_have_count(0)
    open_panel(page, "Reschedule or cancel by key")
    page.locator("#rk-key").fill("three")
    page.locator("#rk-delay").fill("5h")
    page.get_by_role("button", name="Reschedule", exact=True).click()
    result(page, "rescheduled: the pending messages")
    expect(page.locator("#live-part tr", has_text="three")).to_contain_text("in 4 h 59 min")
    page.locator("#ck-key").fill("four")
    with accepting(page, "Cancel all messages with this key?", "They will never be delivered."):
        page.get_by_role("button", name="Cancel the messages").click()
    result(page, f"cancelled: the pending messages of {topic} with the key four")
    result(page, f"duolog timer cancel --topic {topic} --key four")
    assert pending(broker, topic).keys() == {"three"}
    assert values_in(broker, topic) == ["one"]


@clicks("delayed: pause-topic", "delayed: resume-topic")
def test_pause_and_resume_the_deliveries_of_a_topic(page: Page, broker: Broker, topic: str) -> None:
    page.goto(f"/console/delayed?topic={topic}")
    open_panel(page, f"Pause or resume {topic}")
    page.get_by_role("button", name="Pause deliveries").click()
    result(page, f"Deliveries of delayed messages to {topic} are paused.")
    expect(page.locator("#live-part")).to_contain_text(f"Deliveries are paused: {topic}.")
    assert ask(broker, "GET", f"/api/topics/{topic}")["is_paused"]
    page.get_by_role("button", name="Resume deliveries").click()
    result(page, f"Deliveries of delayed messages to {topic} go on.")
    assert not ask(broker, "GET", f"/api/topics/{topic}")["is_paused"]


@clicks("timer: reschedule-timer", "timer: deliver-timer", "timer: cancel-timer")
def test_a_delayed_message_is_found_by_its_id_and_changed_on_its_page(page: Page, broker: Broker, topic: str) -> None:
    ids = delay(broker, topic, "one", "two")
    page.goto("/console/delayed")
    page.locator("#find-id").fill(ids["one"])
    page.get_by_role("button", name="Find", exact=True).click()
    expect(page.locator("main")).to_contain_text(ids["one"])
    page.get_by_label("Deliver in").fill("9h")
    page.get_by_role("button", name="Reschedule", exact=True).click()
    result(page, "rescheduled: the pending message")
    due_ms = pending(broker, topic)
    assert due_ms["one"] - due_ms["two"] > 7 * HOUR_MS
    page.get_by_role("button", name="Deliver now").click()
    expect(page.locator("#result")).to_contain_text(f"duolog timer now {ids['one']}")
    assert (pending(broker, topic).keys(), values_in(broker, topic)) == ({"two"}, ["one"])
    page.goto(f"/console/delayed?topic={topic}")
    page.locator("#live-part").get_by_role("link", name=ids["two"]).click()
    with accepting(page, "Cancel this message?", "It will never be delivered."):
        page.get_by_role("button", name="Cancel", exact=True).click()
    result(page, "cancelled: the pending message")
    assert (pending(broker, topic), values_in(broker, topic)) == ({}, ["one"])


@clicks("schedules: add-schedule", "schedules: remove-schedule")
def test_add_and_remove_a_schedule(page: Page, broker: Broker, topic: str) -> None:
    page.goto("/console/schedules")
    open_panel(page, "Add a schedule")
    page.get_by_label("Name", exact=True).fill("clicked")
    page.get_by_label("Topic", exact=True).fill(topic)
    page.get_by_label("or a cron expression").first.fill("0 9 * * 1-5")
    page.get_by_label("Body").fill("tick")
    page.get_by_role("button", name="Register").click()
    result(page, "created: the schedule clicked")
    with accepting(page, "Remove the schedule clicked?", "Its message is not delivered any more."):
        page.locator("#live-part tr", has_text="clicked").get_by_role("button", name="Remove").click()
    result(page, "removed: the schedule clicked")
    assert "clicked" not in {row["name"] for row in ask(broker, "GET", "/api/schedules")}


@clicks("group: reset-group")
def test_reset_a_group_shows_first_what_would_change(page: Page, broker: Broker) -> None:
    page.goto("/console/groups")
    page.get_by_role("link", name="idle", exact=True).click()
    open_panel(page, "Reset offsets")
    page.locator("#to").select_option("earliest")
    page.get_by_role("button", name="Reset", exact=True).click()
    result(page, "This is what a reset of idle would change.")
    assert ask(broker, "GET", "/api/groups/idle")["positions"][0]["position"] == 1
    page.get_by_label("make the change").check()
    page.get_by_role("button", name="Reset", exact=True).click()
    result(page, "The offsets of idle were reset.")
    assert ask(broker, "GET", "/api/groups/idle")["positions"][0]["position"] == 0
    page.locator("#to").select_option("")
    page.get_by_label("or back by").fill("1ms")
    page.get_by_role("button", name="Reset", exact=True).click()
    result(page, "--to-time")


@clicks("group: delete-group")
def test_delete_a_group_shows_first_what_would_go(page: Page, broker: Broker, faults: list[str]) -> None:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "left"})
    consumer.commit(offsets=[TopicPartition("audit", 0, 1)], asynchronous=False)
    consumer.close()
    page.goto("/console/groups/left")
    open_panel(page, "Delete the group")
    page.get_by_role("button", name="Delete", exact=True).click()
    result(page, "This is what would be deleted of left.")
    assert "left" in {row["name"] for row in ask(broker, "GET", "/api/groups")}
    page.get_by_label("delete its committed offsets and its RocketMQ config").check()
    page.get_by_role("button", name="Delete", exact=True).click()
    result(page, "The group left was deleted.")
    result(page, "duolog group delete left --execute")
    assert "left" not in {row["name"] for row in ask(broker, "GET", "/api/groups")}
    expect(page.locator("#lost")).to_contain_text("status 404")
    faults[:] = [line for line in faults if "404" not in line]


@clicks("transactions: abort-transaction")
def test_abort_a_transaction_says_what_follows(page: Page, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "hanging"})
    producer.init_transactions(15)
    producer.begin_transaction()
    producer.produce("orders", b"x")
    producer.flush(15)
    page.goto("/console/transactions")
    with accepting(page, "Readers of committed records never get its records", "its producer is fenced"):
        page.locator("#live-part tr", has_text="hanging").get_by_role("button", name="Abort").click()
    result(page, "The transaction of hanging was aborted")
    row = ask(broker, "GET", "/api/transactions/hanging")
    assert row["age_ms"] == -1


@clicks("transactions: commit-half", "transactions: roll-back-half")
def test_commit_and_roll_back_half_messages_whose_producer_is_gone(page: Page, broker: Broker) -> None:
    send_half(broker, "to commit", "H1")
    send_half(broker, "to roll back", "H2")
    page.goto("/console/transactions")
    with accepting(page, "Commit this half message?", "Consumers get it, and its producer cannot roll it back"):
        page.locator("#live-part tr", has_text="orders/H1").get_by_role("button", name="Commit").click()
    result(page, "was committed.")
    expect(page.locator("#live-part tr", has_text="orders/H1")).to_have_count(0)
    with accepting(page, "Roll back this half message?", "No consumer ever gets it", "cannot commit it any more"):
        page.locator("#live-part tr", has_text="orders/H2").get_by_role("button", name="Roll back").click()
    result(page, "was rolled back.")
    found = ask(broker, "GET", "/api/topics/orders/messages?queue=0&offset=50&limit=1000")["messages"]
    assert [row["value"] for row in found if row["value"].startswith("to ")] == ["to commit"]


def redriven(broker: Broker, group: str) -> list[str]:
    """Return the bodies of the dead letters of a group that were redriven."""
    rows = ask(broker, "GET", f"/api/groups/{group}/dead-letters")["dead_letters"]
    return [row["value"] for row in rows if row["is_redriven"]]


@clicks("dead_letters: redrive")
def test_redrive_selected_dead_letters_then_those_that_match_then_all(page: Page, broker: Broker) -> None:
    for body, tag in (("one", "late"), ("two", "late"), ("three", "late"), ("four", "wrong"), ("five", "wrong")):
        add_dead_letter(broker, body, "returns", tag)
    page.goto("/console/dead-letters?group=returns")
    expect(page.locator("#live-part tbody tr")).to_have_count(5)
    page.get_by_label("Select the dead letter at offset 1").check()
    page.locator("#some-to").select_option("topic")
    with accepting(page, "Send the selected dead letters of returns again?", "become dead letters again"):
        page.get_by_role("button", name="Redrive the selected").click()
    result(page, "1 dead letters of returns were sent again.")
    result(page, "duolog group redrive returns --to topic --offset 1")
    assert redriven(broker, "returns") == ["two"]
    page.get_by_label("Tag").fill("wrong")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("#live-part tbody tr")).to_have_count(2)
    open_panel(page, "Redrive all that match")
    page.get_by_role("button", name="Only show the command").last.click()
    result(page, "duolog group redrive returns --tag wrong")
    assert redriven(broker, "returns") == ["two"]
    page.locator("details select[name=to]").select_option("topic")
    with accepting(page, "all dead letters of returns that match, also those on other pages"):
        page.get_by_role("button", name="Redrive all that match").click()
    result(page, "All dead letters of returns that match were sent again.")
    assert redriven(broker, "returns") == ["two", "four", "five"]
    page.goto("/console/dead-letters")
    page.get_by_role("link", name="returns").click()
    open_panel(page, "Redrive all")
    page.locator("details select[name=to]").select_option("topic")
    with accepting(page, "Send the dead letters of returns again?"):
        page.get_by_role("button", name="Redrive all", exact=True).click()
    result(page, "All dead letters of returns were sent again.")
    assert redriven(broker, "returns") == ["one", "two", "three", "four", "five"]
    page.get_by_label("Select all").check()
    expect(page.get_by_label("Select the dead letter at offset 2")).to_be_checked()


def test_a_dead_letter_shows_its_attempts_and_links_to_its_original(page: Page, broker: Broker) -> None:
    add_dead_letter(broker, "the original", "archive")
    page.goto("/console/dead-letters?group=archive")
    page.get_by_label("When the attempts of the dead letter at offset 0 failed").click()
    expect(page.locator("#live-part details li")).to_contain_text("consumer 127.0.0.1")
    page.get_by_role("link", name="The original of the dead letter at offset 0").click()
    expect(page.locator(".messages li").first).to_contain_text("the original")


def copied(page: Page) -> str:
    """Return what the browser's clipboard holds, once the page says that it copied."""
    expect(page.get_by_text("Copied", exact=True)).to_be_visible()
    found: str = page.evaluate("navigator.clipboard.readText()")
    return found


def test_commands_of_a_page_and_of_a_message_are_copied(page: Page, broker: Broker) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/console/topics?search=ord")
    page.get_by_role("button", name="Copy the command").click()
    assert copied(page) == f"duolog topic list --search ord --http {broker.http}"
    page.reload()
    page.get_by_role("button", name="Copy for curl").click()
    assert copied(page).startswith(f"curl -s 'http://{broker.http}/api/topics?search=ord")
    page.goto("/console/messages?topic=orders&queue=1")
    page.get_by_role("button", name="Copy message 3 as a command").click()
    assert copied(page) == f"duolog message show orders 1 3 --http {broker.http}"


def test_a_result_is_closed(page: Page) -> None:
    page.goto("/console/topics")
    open_panel(page, "Create a topic")
    page.get_by_label("Name", exact=True).fill("not-made")
    page.get_by_role("button", name="Only show the command").click()
    result(page, "Nothing was done. This is the command:")
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#result")).to_be_empty()
    expect(page.locator("#main")).to_be_focused()


@clicks("settings: reload-settings")
def test_reload_settings(page: Page) -> None:
    page.goto("/console/settings?search=log.level")
    expect(page.locator("tbody")).to_contain_text("log.level")
    page.get_by_role("button", name="Read the settings again").click()
    result(page, "The settings were read again.")


@pytest.fixture
def with_set_aside_records(tmp_path: Path) -> Iterator[Broker]:
    set_aside_records(tmp_path / "data")
    with Broker(tmp_path / "data") as running:
        yield running


@clicks("overview: acknowledge-records")
def test_records_that_were_set_aside_are_acknowledged(page: Page, with_set_aside_records: Broker) -> None:
    broker = with_set_aside_records
    page.goto(f"http://{broker.http}/")
    page.get_by_role("link", name="stored records could not be processed").click()
    table = page.get_by_role("region", name="Records that were set aside")
    expect(table.locator("tbody tr")).to_have_count(2)
    with accepting(page, "Acknowledge all records", "no start reports them again"):
        page.get_by_role("button", name="Acknowledge all").click()
    result(page, "The records that were set aside are acknowledged.")
    expect(table).to_have_count(0)
    expect(page.locator("#live-part")).to_contain_text("There are no warnings.")
    assert all(row["is_acknowledged"] for row in ask(broker, "GET", "/api/poison")["records"])


def test_a_broker_that_is_gone_is_said(page: Page, faults: list[str]) -> None:
    page.goto("/console/messages?topic=audit&tail=true")
    page.route("**/console/messages*", lambda route: route.abort())
    expect(page.locator("#lost")).to_be_visible()
    page.unroute("**/console/messages*")
    expect(page.locator("#lost")).to_be_hidden()
    faults.clear()


# -- Completeness

BUTTON = re.compile(r'(?:deed\("|hx-post="/console/actions/)([\w-]+)"')


def test_each_action_of_each_page_is_clicked() -> None:
    """A template has the name of the function in PAGES that makes its page."""
    on_pages = {
        f"{template.stem}: {action}"
        for template in TEMPLATES.glob("*.html")
        for action in BUTTON.findall(template.read_text())
    }
    tests: list[Callable[..., Any]] = [each for name, each in globals().items() if name.startswith("test_")]
    marks = [mark for test in tests for mark in getattr(test, "pytestmark", ())]
    assert {name for mark in marks if mark.name == "clicks" for name in mark.args} == on_pages
    assert {name.partition(": ")[2] for name in on_pages} == set(ACTIONS)
    assert {name.partition(": ")[0] for name in on_pages} <= {page.__name__ for page in PAGES.values()}
