"""Each action of a page, clicked in a real browser, changes the broker; each shows the command that does the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.console.contents import add_dead_letter, ask, send_half
from tests.kit.broker import Broker


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


def accept(page: Page) -> None:
    page.once("dialog", lambda dialog: dialog.accept())


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
    accept(page)
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


def test_deliver_reschedule_and_cancel_delayed_messages(page: Page, broker: Broker, topic: str) -> None:
    for key in ("one", "two", "three", "four"):
        ask(broker, "POST", "/api/timers", {"topic": topic, "value": key, "key": key, "delay_ms": 3_600_000})
    page.goto(f"/console/delayed?topic={topic}")
    page.locator("#live-part tr", has_text="one").get_by_role("button", name="Now").click()
    result(page, "rescheduled: the pending message")
    accept(page)
    page.locator("#live-part tr", has_text="two").get_by_role("button", name="Cancel").click()
    result(page, "cancelled: the pending message")
    expect(page.locator("#live-part tr", has_text="two")).to_have_count(0)
    open_panel(page, "Reschedule or cancel by key")
    page.locator("#rk-key").fill("three")
    page.locator("#rk-delay").fill("5h")
    page.get_by_role("button", name="Reschedule", exact=True).click()
    result(page, "rescheduled: the pending messages")
    row = page.locator("#live-part tr", has_text="three")
    expect(row).to_contain_text("in 4 h 59 min")
    row.get_by_role("link").last.click()
    page.get_by_label("Deliver in").fill("9h")
    page.get_by_role("button", name="Reschedule", exact=True).click()
    result(page, "rescheduled")
    timers = {row["key"]: row for row in ask(broker, "GET", f"/api/timers?topic={topic}&content=true")["timers"]}
    assert timers.keys() == {"three", "four"}
    assert timers["three"]["due_ms"] - timers["four"]["due_ms"] > 7 * 3_600_000
    assert [each["value"] for each in ask(broker, "GET", f"/api/topics/{topic}/messages")["messages"]] == ["one"]


def test_add_and_remove_a_schedule(page: Page, broker: Broker, topic: str) -> None:
    page.goto("/console/schedules")
    open_panel(page, "Add a schedule")
    page.get_by_label("Name", exact=True).fill("clicked")
    page.get_by_label("Topic", exact=True).fill(topic)
    page.get_by_label("or a cron expression").first.fill("0 9 * * 1-5")
    page.get_by_label("Body").fill("tick")
    page.get_by_role("button", name="Register").click()
    result(page, "created: the schedule clicked")
    accept(page)
    page.locator("#live-part tr", has_text="clicked").get_by_role("button", name="Remove").click()
    result(page, "removed: the schedule clicked")
    assert "clicked" not in {row["name"] for row in ask(broker, "GET", "/api/schedules")}


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


def test_abort_a_transaction_says_what_follows(page: Page, broker: Broker) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "hanging"})
    producer.init_transactions(15)
    producer.begin_transaction()
    producer.produce("orders", b"x")
    producer.flush(15)
    page.goto("/console/transactions")
    said: list[str] = []

    def answer(dialog: object) -> None:
        said.append(dialog.message)  # type: ignore[attr-defined]
        dialog.accept()  # type: ignore[attr-defined]

    page.once("dialog", answer)
    page.locator("#live-part tr", has_text="hanging").get_by_role("button", name="Abort").click()
    result(page, "The transaction of hanging was aborted")
    assert "fenced" in said[0]
    row = ask(broker, "GET", "/api/transactions/hanging")
    assert row["age_ms"] == -1


def test_commit_and_roll_back_half_messages_whose_producer_is_gone(page: Page, broker: Broker) -> None:
    send_half(broker, "to commit", "H1")
    send_half(broker, "to roll back", "H2")
    page.goto("/console/transactions")
    accept(page)
    page.locator("#live-part tr", has_text="orders/H1").get_by_role("button", name="Commit").click()
    result(page, "was committed.")
    expect(page.locator("#live-part tr", has_text="orders/H1")).to_have_count(0)
    accept(page)
    page.locator("#live-part tr", has_text="orders/H2").get_by_role("button", name="Roll back").click()
    result(page, "was rolled back.")
    found = ask(broker, "GET", "/api/topics/orders/messages?queue=0&offset=50&limit=1000")["messages"]
    assert [row["value"] for row in found if row["value"].startswith("to ")] == ["to commit"]


def test_redrive_selected_dead_letters_then_all(page: Page, broker: Broker) -> None:
    for body in ("one", "two", "three"):
        add_dead_letter(broker, body, "returns")
    page.goto("/console/dead-letters?group=returns")
    rows = page.locator("#live-part tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_label("Select the dead letter at offset 1").check()
    page.locator("#some-to").select_option("topic")
    accept(page)
    page.get_by_role("button", name="Redrive the selected").click()
    result(page, "1 dead letters of returns were sent again.")
    result(page, "duolog group redrive returns --to topic --offset 1")
    page.get_by_label("Tag").fill("late")
    page.get_by_role("button", name="Show", exact=True).click()
    open_panel(page, "Redrive all that match")
    page.get_by_role("button", name="Only show the command").last.click()
    result(page, "duolog group redrive returns --tag late")
    page.goto("/console/dead-letters")
    page.get_by_role("link", name="returns").click()
    open_panel(page, "Redrive all")
    page.locator("details select[name=to]").select_option("topic")
    accept(page)
    page.get_by_role("button", name="Redrive all", exact=True).click()
    result(page, "All dead letters of returns were sent again.")
    expect(page.locator("#live-part tbody")).not_to_contain_text("no")
    page.get_by_label("Select all").check()
    expect(page.get_by_label("Select the dead letter at offset 2")).to_be_checked()


def test_a_dead_letter_shows_its_attempts_and_links_to_its_original(page: Page, broker: Broker) -> None:
    add_dead_letter(broker, "the original", "archive")
    page.goto("/console/dead-letters?group=archive")
    page.get_by_label("When the attempts of the dead letter at offset 0 failed").click()
    expect(page.locator("#live-part details li")).to_contain_text("consumer 127.0.0.1")
    page.get_by_role("link", name="The original of the dead letter at offset 0").click()
    expect(page.locator(".messages li").first).to_contain_text("the original")


def test_filter_messages(page: Page) -> None:
    page.goto("/console/messages?topic=orders")
    page.get_by_label("SQL92 condition").fill("TAGS = 'open' AND trace = 't-4'")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".messages li")).to_have_count(1)
    expect(page.locator(".messages")).to_contain_text("order-4")


def test_preview_a_cron_expression(page: Page) -> None:
    page.goto("/console/schedules")
    page.get_by_role("link", name="Preview 30 2 * * * Europe/Berlin").click()
    expect(page.get_by_text("when the clock goes from +01:00 to +02:00")).to_be_visible()


def test_copy_and_close(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/console/topics")
    page.get_by_role("button", name="Copy the command").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").startswith("duolog topic list")


def test_reload_settings(page: Page) -> None:
    page.goto("/console/settings?search=log.level")
    expect(page.locator("tbody")).to_contain_text("log.level")
    page.get_by_role("button", name="Read the settings again").click()
    result(page, "The settings were read again.")


def test_a_broker_that_is_gone_is_said(page: Page, faults: list[str]) -> None:
    page.goto("/console/messages?topic=audit&tail=true")
    page.route("**/console/messages*", lambda route: route.abort())
    expect(page.locator("#lost")).to_be_visible()
    page.unroute("**/console/messages*")
    expect(page.locator("#lost")).to_be_hidden()
    faults.clear()
