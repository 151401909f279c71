"""Open transactions of both client protocols."""

from duolog.bridge.console.commands import duolog
from duolog.bridge.console.pages.page import ROWS, Page, PageApi


async def transactions(api: PageApi) -> Page:
    found = await api.get("/api/transactions", words=duolog("txn", "list"))
    return Page("transactions.html", "Transactions", {"rows": found[:ROWS], "more": max(0, len(found) - ROWS)})
