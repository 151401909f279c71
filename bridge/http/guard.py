"""Protection against web pages: a page in a browser on this machine must not be able to use the API.

    Host          must name the broker: a loopback name, the listening or advertised address, or one of `http.hosts`;
                  else 403. A page whose host name resolves to the broker (DNS rebinding) sends its own host name.
    Content-Type  must be application/json for a request that may change something; else 415. A page of another origin
                  can send this type only after a CORS preflight request, which is refused. A DELETE without a body does
                  not need it, because every DELETE of a page needs a preflight; a POST without a body needs it.
    Origin        must be the broker itself or one of `http.origins`, if such a request has it; else 403.

Answers have no CORS headers, so a page of another origin cannot read them. Programs other than browsers send no Origin.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from aiohttp import web

from duolog.bridge.config import Options
from duolog.bridge.net.addresses import WILDCARDS

SAFE_METHODS: Final = ("GET", "HEAD")
JSON: Final = "application/json"

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::\d{1,5})?")


class Guard:
    """The rules for the requests to one broker."""

    def __init__(self, options: Options, advertised_host: str) -> None:
        host = options.server.host
        self._is_wildcard = host in WILDCARDS
        served = ["localhost", advertised_host, *options.http.hosts.split(), *([] if self._is_wildcard else [host])]
        self._names = {_comparable(name) for name in served}
        self._origins = {origin.lower().rstrip("/") for origin in options.http.origins.split()}

    def check(self, request: web.Request) -> None:
        """Raise HTTPException if a request must not be served."""
        host = self._host(request)
        if request.method not in SAFE_METHODS:
            self._check_content_type(request)
            self._check_origin(request, host)

    def _host(self, request: web.Request) -> str:
        given = request.headers.getall("Host", [])
        found = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        if found is None:
            raise web.HTTPBadRequest(text=f"Host: expected one HOST or HOST:PORT, got {', '.join(given)[:200]!r}")
        if not self._serves(_comparable(found[1]), request):
            raise web.HTTPForbidden(
                text=f"Host: {given[0][:200]!r} is not a name of the broker; add it to http.hosts if it is one"
            )
        return given[0].lower()

    def _serves(self, name: str, request: web.Request) -> bool:
        if name in self._names:
            return True
        address = _address(name)
        if address is None:
            return False
        # The broker may be reached by any address of the machine, and an address cannot be rebound.
        if address.is_loopback or self._is_wildcard:
            return True
        local = request.get_extra_info("sockname")
        return local is not None and _address(local[0]) == address

    def _check_content_type(self, request: web.Request) -> None:
        if request.method == "DELETE" and not request.can_read_body:
            return
        given = request.headers.getall("Content-Type", [])
        if len(given) != 1 or given[0].partition(";")[0].strip().lower() != JSON:
            raise web.HTTPUnsupportedMediaType(
                text=f"Content-Type: expected {JSON}, also without a body, got {', '.join(given)[:200]!r}"
            )

    def _check_origin(self, request: web.Request, host: str) -> None:
        for origin in request.headers.getall("Origin", []):
            plain = origin.lower()
            if plain not in (f"http://{host}", f"https://{host}") and plain not in self._origins:
                raise web.HTTPForbidden(text=f"Origin: {origin[:200]!r} is not in http.origins")


def _comparable(name: str) -> str:
    """Return a host name as names are compared: an address in its shortest form, without brackets."""
    bare = name.strip("[]").rstrip(".").lower()
    address = _address(bare)
    return bare if address is None else str(address)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
