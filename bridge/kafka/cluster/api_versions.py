"""ApiVersions 0..4, computed from the table of APIs."""

import re
from functools import cache
from typing import Any

from duolog.bridge.kafka.context import Describing
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import NO_THROTTLE, AdvertisedVersions, KafkaRequest
from duolog.bridge.net.answers import Answer
from duolog.protocol.kafka.api_messages import (
    ApiKey,
    ErrorCode,
    ResponseTypes,
    encode_body,
    encode_frame,
    response_types,
)

_TRANSACTION_VERSION, _TRANSACTIONS = "transaction.version", 2
_FEATURES_FROM = 3
_CLIENT_ID_CHARACTERS_MAX = 200
_FEATURES_FROM_ZERO = 4  # Older Java clients cannot read a supported feature whose lowest version is 0 (KAFKA-17492).

# ApiVersionsRequest.java#SOFTWARE_NAME_VERSION_PATTERN
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(context: Describing, connection: OrderedConnection, request: KafkaRequest) -> Answer:
    """List the APIs of the table, and the feature that lets clients use transactions of version 2 (KIP-890)."""
    connection.client_id = request.client_id[:_CLIENT_ID_CHARACTERS_MAX]
    error = ErrorCode.none
    if request.version >= 3:
        names = (request.body.client_software_name, request.body.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            error = ErrorCode.invalid_request
    if error is not ErrorCode.none:
        request.count_error(error)
    body = _body(context.advertised_versions, request.version, error)
    return Answer(encode_frame(request.api_key, request.version, request.correlation_id, [body]))


def unsupported(versions: AdvertisedVersions, correlation_id: int) -> Answer:
    """Answer a request of an unknown version in version 0, which every client can read (KIP-511)."""
    body = _body(versions, 0, ErrorCode.unsupported_version)
    return Answer(encode_frame(ApiKey.API_VERSIONS, 0, correlation_id, [body]))


@cache
def _body(versions: AdvertisedVersions, version: int, error: ErrorCode) -> bytes:
    types = response_types(ApiKey.API_VERSIONS, version)
    listed = () if error is ErrorCode.invalid_request else versions
    keys = tuple(
        types.ApiVersion(api_key=key, min_version=lowest, max_version=highest) for key, lowest, highest in listed
    )
    entity = types.ApiVersionsResponse(
        error_code=error, api_keys=keys, throttle_time=NO_THROTTLE, **_features(types, version)
    )
    return encode_body(ApiKey.API_VERSIONS, version, entity)


def _features(types: ResponseTypes, version: int) -> dict[str, Any]:
    if version < _FEATURES_FROM:
        return {}
    level = {"name": _TRANSACTION_VERSION, "max_version_level": _TRANSACTIONS, "min_version_level": _TRANSACTIONS}
    found: dict[str, Any] = {
        "finalized_features_epoch": 0,  # Clients ignore finalized features without an epoch.
        "finalized_features": (types.FinalizedFeatureKey(**level),),
    }
    if version >= _FEATURES_FROM_ZERO:
        supported = types.SupportedFeatureKey(name=_TRANSACTION_VERSION, min_version=0, max_version=_TRANSACTIONS)
        found["supported_features"] = (supported,)
    return found
