"""Open transactions of both client protocols."""

from duolog.bridge.console.commands import duolog
from duolog.bridge.console.pages.page import ROWS, Page, PageApi
from duolog.bridge.http.observation.warnings import HANGING_MS


async def transactions(api: PageApi) -> Page:
    found = await api.get("/api/transactions", words=duolog("txn", "list"))
    values = {"rows": found[:ROWS], "more": max(0, len(found) - ROWS), "hanging_ms": HANGING_MS}
    return Page("transactions.html", "Transactions", values)
