"""How to reach an object store."""

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from duolog.store.objects.errors import StoreRefused

SCHEMES = ("s3", "gs", "az", "file", "memory")


@dataclass(frozen=True)
class ObjectStoreOptions:
    """The URL of the objects and the limits of one request. Credentials are no options: see `credentials.py`."""

    url: str  # s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory, memory://
    endpoint: str = ""  # Empty: the provider's own
    region: str = ""  # The region of S3. Empty: AWS_REGION, AWS_DEFAULT_REGION, that of the profile, or us-east-1.
    connect_timeout_ms: int = 1_000
    request_timeout_ms: int = 5_000  # From the request to its answer, without the time that the content takes
    bytes_per_s_min: int = 1 << 20  # Slower transfers of content end with a time-out.


class Location(NamedTuple):
    """A URL of an object store, by its parts. `bucket` is Azure's container; it is empty for `file` and `memory`."""

    scheme: str
    bucket: str
    prefix: str  # Without `/` at its ends; for `file` the absolute path of the directory


def parse_location(url: str) -> Location:
    """Split a URL of an object store.

    Raises StoreRefused, with an example, if the URL names no store or contains credentials. The message leaves out what
    stands before an `@`, because it may be a password.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise StoreRefused(
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}: the URL must contain no user, password, "
            "query or fragment: credentials come from the environment and from profile files"
        )
    if parts.scheme not in SCHEMES:
        raise StoreRefused(f"{url!r} is no URL of an object store: use s3://bucket/prefix, gs://, az:// or file://")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.strip("/"):
            raise StoreRefused(f"{url!r} names no directory: use file:///directory")
        return Location("file", "", "/" + parts.path.strip("/"))
    if parts.scheme != "memory" and not parts.netloc:
        raise StoreRefused(f"{url!r} names no bucket: use {parts.scheme}://bucket/prefix")
    return Location(parts.scheme, parts.netloc, parts.path.strip("/"))
