"""The class Page, a template with its values; and the class PageApi, by which a page calls the HTTP API."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from duolog.bridge.console.commands import Commands, commands
from duolog.bridge.console.forms import Form
from duolog.bridge.console.masking import Masking
from duolog.bridge.http.local_api import LocalApi

ROWS: Final = 100  # The number of rows of a table on one page.


class PageRefused(Exception):
    """The API refused a request of a page."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Display(NamedTuple):
    """The settings of the display of messages."""

    masking: Masking
    schemas_directory: str


class Page(NamedTuple):
    """A template with its values."""

    template: str
    title: str
    values: Mapping[str, Any]


def rows_from(rows: Sequence[Any], start: int | None) -> tuple[Sequence[Any], int | None]:
    """Return the rows of the page that begins at `start`, and the start of the next page; None after the last one."""
    start = start or 0
    end = start + ROWS
    return rows[start:end], end if len(rows) > end else None


class PageApi:
    """The API for one request of a browser. `now_ms` is the time of the request.

    `labels` are the labels of the fields in the query.
    """

    def __init__(
        self, local: LocalApi, request: web.Request, display: Display, now_ms: int, labels: Mapping[str, str]
    ) -> None:
        self._local, self._request, self.now_ms = local, request, now_ms
        self.masking, self.schemas_directory = display
        self.query = Form(request.query, now_ms, labels)
        self.host = request.host
        self.origin = f"{request.scheme}://{request.host}"
        self.commands: list[Commands] = []  # The commands that show the same as the page.

    def place(self, name: str) -> str:
        """Return a part of the page's path."""
        return self._request.match_info[name]

    async def get(self, path: str, *, words: tuple[str, ...] = (), **query: object) -> Any:
        """Return the answer to a GET. Raises PageRefused. The page shows `words`, the equivalent command."""
        given = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in query.items()
            if value is not None
        }
        if words:
            self.commands.append(commands(words, self.origin, "GET", path, given))
        status, content = await self._local.call(self._request, "GET", path, given)
        if status >= 400:
            raise PageRefused(status, self.query.labelled(error_of(content)))
        return content


def error_of(content: Any) -> str:
    """Return the text of an error answer."""
    return str(content["error"]) if isinstance(content, dict) and "error" in content else str(content)
