"""Opens the object store of a URL."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from duolog.store.objects.credentials import read_profile
from duolog.store.objects.errors import StoreRefused
from duolog.store.objects.local import LocalObjects
from duolog.store.objects.options import Location, ObjectStoreOptions, parse_location
from duolog.store.objects.remote import RemoteObjects

ENDPOINT_VARIABLES = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
)  # `obstore` reads them if no endpoint is set.
UNSIGNED_VARIABLE = "AWS_UNSIGNED_PAYLOAD"
BODY_TIMEOUT = timedelta(minutes=10)  # `RemoteObjects` ends requests earlier, by their size.


def open_objects(options: ObjectStoreOptions, environment: Mapping[str, str] = os.environ) -> RemoteObjects:
    """Return the object store of `options.url`. Nothing is sent yet.

    Imports `obstore`. Raises StoreRefused if the URL, the endpoint or the profile cannot be used.
    """
    location = parse_location(options.url)
    if location.scheme == "file":
        return LocalObjects(location, options)
    return RemoteObjects(_opened(location, options, environment), location, options)


def _opened(location: Location, options: ObjectStoreOptions, environment: Mapping[str, str]) -> Any:
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, MemoryStore

    try:
        match location.scheme:
            case "memory":
                return MemoryStore()
            case "s3":
                return _s3(location, options, environment)
            case "gs":
                base: Any = {"base_url": options.endpoint} if options.endpoint else {}
                return GCSStore(location.bucket, prefix=location.prefix or None, **base, **_client(options))
            case _:
                base = {"endpoint": options.endpoint} if options.endpoint else {}
                return AzureStore(location.bucket, prefix=location.prefix or None, **base, **_client(options))
    except (BaseError, ValueError, OSError) as error:
        # The text of `obstore` may quote settings of the environment.
        raise StoreRefused(
            f"the object store cannot be opened ({type(error).__name__}): correct --shared, shared.endpoint, and the "
            "provider's variables in the environment"
        ) from None


def _s3(location: Location, options: ObjectStoreOptions, environment: Mapping[str, str]) -> Any:
    from obstore.store import S3Store

    profile = read_profile(environment)
    config = {
        "region": options.region
        or environment.get("AWS_REGION", "")
        or environment.get("AWS_DEFAULT_REGION", "")
        or profile.region,
        "endpoint": options.endpoint,
        "access_key_id": profile.access_key_id,
        "secret_access_key": profile.secret_access_key,
        "session_token": profile.session_token,
    }
    given: Any = {name: value for name, value in config.items() if value}
    if UNSIGNED_VARIABLE not in environment:
        given["unsigned_payload"] = _is_encrypted(options.endpoint, environment)
    return S3Store(location.bucket, prefix=location.prefix or None, **given, **_client(options))


def _is_encrypted(endpoint: str, environment: Mapping[str, str]) -> bool:
    """Return whether the content is protected by TLS, so that its SHA-256 need not be signed (decision 51)."""
    given = [endpoint, *(environment.get(name, "") for name in ENDPOINT_VARIABLES)]
    return not any(each.lower().startswith("http://") for each in given)


def _client(options: ObjectStoreOptions) -> Any:
    return {
        "client_options": {
            "allow_http": options.endpoint.startswith("http://"),
            "connect_timeout": timedelta(milliseconds=options.connect_timeout_ms),
            "timeout": BODY_TIMEOUT,
        },
        "retry_config": {"max_retries": 0},
    }
