"""The errors of the items that were refused before the handler ran, added to the response that the handler made."""

from dataclasses import replace
from itertools import chain
from typing import Any

from duolog.bridge.kafka.requests import fault_answers
from duolog.bridge.kafka.requests.access import RefusedItems
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.response import Elements


def with_refused(request: KafkaRequest, entity: Any) -> Any:
    """Return the response with the errors of refused items in addition."""
    refused: RefusedItems = request.refused
    parts = [*refused.bodies.items()]
    if refused.not_attempted is not None:
        parts.append((ErrorCode.operation_not_attempted, refused.not_attempted))
    for error, body in parts:
        errors = fault_answers.entity_of(request._replace(body=body), error)
        name = fault_answers.array_name(type(errors))
        entity = replace(entity, **{name: Elements(chain(_elements(getattr(entity, name)), getattr(errors, name)))})
    return entity


def _elements(array: Any) -> Any:
    return array.elements if isinstance(array, Elements) else array or ()
