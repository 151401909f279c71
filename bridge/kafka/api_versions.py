"""ApiVersions 0..4, computed from the table; SaslHandshake 0..1, to say that there is nothing to log in to."""

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from duolog.bridge.kafka.requests.request import NO_THROTTLE, Request
from duolog.bridge.net.answers import Answer
from duolog.protocol.kafka.api_messages import (
    ApiKey,
    ErrorCode,
    ResponseTypes,
    encode_body,
    encode_frame,
    response_types,
)

if TYPE_CHECKING:
    from duolog.bridge.broker import Broker
    from duolog.bridge.kafka.requests.connection import KafkaConnection

_TRANSACTION_VERSION, _TRANSACTIONS = "transaction.version", 2
_FEATURES_FROM = 3
_FEATURES_FROM_ZERO = 4  # Older Java clients cannot read a supported feature whose lowest version is 0 (KAFKA-17492).

# ApiVersionsRequest.java#SOFTWARE_NAME_VERSION_PATTERN
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """List what the table has, and the feature that lets clients use transactions of version 2 (KIP-890)."""
    error = ErrorCode.none
    if request.version >= 3:
        names = (request.body.client_software_name, request.body.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            error = ErrorCode.invalid_request
    body = _body(request.version, error)
    return Answer(encode_frame(request.api_key, request.version, request.correlation_id, [body]))


def unsupported(correlation_id: int) -> Answer:
    """Answer a version that we do not know: in version 0, which every client can read (KIP-511)."""
    body = _body(0, ErrorCode.unsupported_version)
    return Answer(encode_frame(ApiKey.API_VERSIONS, 0, correlation_id, [body]))


@cache
def _body(version: int, error: ErrorCode) -> bytes:
    from duolog.bridge.kafka import TABLE  # Here, because the table names this module's handlers.

    types = response_types(ApiKey.API_VERSIONS, version)
    rows = () if error is ErrorCode.invalid_request else TABLE.values()
    keys = tuple(
        types.ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1]) for api in rows
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


def sasl_handshake(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Refuse every mechanism, so that a client that wants to log in says what is wrong instead of "disconnected"."""
    types = request.types
    return request.answer(types.SaslHandshakeResponse(error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=()))
