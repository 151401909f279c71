"""The table of all pages: what each asks the API for, and the template that shows it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from duolog.bridge.console.pages import broker, delayed, groups, messages, overview, topics, transactions
from duolog.bridge.console.pages.page import Page, PageApi

PAGES: Final[Mapping[str, Callable[[PageApi], Awaitable[Page]]]] = {
    "/": overview.overview,
    "/console/topics": topics.topics,
    "/console/topics/{name}": topics.topic,
    "/console/messages": messages.messages,
    "/console/send": messages.send,
    "/console/delayed": delayed.delayed,
    "/console/timer": delayed.timer,
    "/console/schedules": delayed.schedules,
    "/console/transactions": transactions.transactions,
    "/console/groups": groups.groups,
    "/console/groups/{name}": groups.group,
    "/console/dead-letters": groups.dead_letters,
    "/console/clients": broker.clients,
    "/console/settings": broker.settings,
    "/console/log": broker.log,
}
