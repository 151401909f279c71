"""DescribeClientQuotas and AlterClientQuotas 0..1 (KIP-546), as `kafka-configs.sh` uses them for users and clients.

Keys are those of `bridge/security/quotas/entity.py`; `controller_mutation_rate` and the entity type `ip` are refused
with INVALID_REQUEST. All changes of one entity are done, or none.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.errors import InvalidRequest
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import NO_THROTTLE, KafkaRequest, Steps, join_promises
from duolog.bridge.security.quotas.entity import ANY, BadQuota, Entity
from duolog.bridge.security.quotas.stored_quotas import TooManyQuotas
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.response import Elements
from duolog.store.entry import Promise
from duolog.store.errors import StoreError

USER, CLIENT_ID = "user", "client-id"  # ClientQuotaEntity.java
_FIELDS: Final = {USER: "user", CLIENT_ID: "client_id"}
Parts = tuple[tuple[str, str | None], ...]  # The types and names of an entity.
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2  # DescribeClientQuotasRequest.java


class _Filter(NamedTuple):
    """What a name of an entity must be: one name, or any that is there."""

    kind: int
    name: str

    def takes(self, name: str | None) -> bool:
        return name is not None and (self.kind == _SPECIFIED or name == self.name)


# -- Describing


def describe_client_quotas(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """List the quotas that the filter takes."""
    types, error, message = request.types, ErrorCode.none, None
    found: list[tuple[Entity, Mapping[str, float]]] = []
    try:
        filters = _filters_of(request.body.components)
        is_strict = request.body.strict
        every = context.security.quotas.stored.all()
        found = [(entity, limits) for entity, limits in every if _takes(filters, entity, is_strict=is_strict)]
    except InvalidRequest as refusal:
        error, message = ErrorCode.invalid_request, str(refusal)
    yield
    entity = types.DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        error_message=message,
        entries=Elements(_entry(types, *each) for each in found),
    )
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def _filters_of(components: Sequence[Any]) -> dict[str, _Filter]:
    """Return the filters by the fields of an Entity. Raises InvalidRequest."""
    filters: dict[str, _Filter] = {}
    for component in components:
        kind = int(component.match_type)
        field = _field_of(component.entity_type)
        if field in filters:
            raise InvalidRequest(f"the entity type {component.entity_type} is named twice")
        if kind not in (_EXACT, _DEFAULT, _SPECIFIED) or (kind == _EXACT) != (component.match is not None):
            raise InvalidRequest(f"match type {kind} with the name {component.match!r:.100} is not supported")
        filters[field] = _Filter(kind, component.match or ANY)
    return filters


def _takes(filters: dict[str, _Filter], entity: Entity, *, is_strict: bool) -> bool:
    for field in Entity._fields:
        name, wanted = getattr(entity, field), filters.get(field)
        if wanted is None:
            if is_strict and name is not None:
                return False
        elif not wanted.takes(name):
            return False
    return True


def _entry(types: Any, entity: Entity, limits: Mapping[str, float]) -> Any:
    return types.EntryData(
        entity=tuple(
            types.EntityData(entity_type=kind, entity_name=getattr(entity, field) or None)
            for kind, field in _FIELDS.items()
            if getattr(entity, field) is not None
        ),
        values=tuple(types.ValueData(key=key, value=value) for key, value in limits.items()),
    )


# -- Altering


def alter_client_quotas(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Set and remove the quotas of entities; with validate_only, say whether that would be possible."""
    types, promise = request.types, context.barrier()
    results = []
    for parts, ops in _by_entity(request.body.entries).items():
        error, message = ErrorCode.none, None
        try:
            kept = _alter(context, parts, ops, is_real=not request.body.validate_only)
            promise = join_promises(promise, kept) or promise
        except (InvalidRequest, BadQuota) as refusal:
            error, message = ErrorCode.invalid_request, str(refusal)
        except (TooManyQuotas, StoreError) as refusal:
            error, message = ErrorCode.policy_violation, str(refusal)
        entity = tuple(types.EntityData(entity_type=kind, entity_name=name) for kind, name in parts)
        results.append(types.EntryData(error_code=error, error_message=message, entity=entity))
        yield
    answer = types.AlterClientQuotasResponse(throttle_time=NO_THROTTLE, entries=Elements(results))
    return make_answer(request, (yield from encode_in_steps(context, request, answer)), promise)


def _by_entity(entries: Sequence[Any]) -> dict[Parts, list[Any]]:
    """Return the changes by entity; an entity that is named again has the changes of all its entries."""
    found: dict[Parts, list[Any]] = {}
    for entry in entries:
        parts = tuple(dict.fromkeys((part.entity_type, part.entity_name) for part in entry.entity))
        found.setdefault(parts, []).extend(entry.ops)
    return found


def _alter(context: KafkaContext, parts: Parts, ops: Sequence[Any], *, is_real: bool) -> Promise | None:
    """Change the quotas of one entity. Raises InvalidRequest, BadQuota, TooManyQuotas, StoreError."""
    entity, stored = _entity_of(parts), context.security.quotas.stored
    changes: dict[str, float | None] = {}
    for op in ops:
        if op.key in changes:
            raise InvalidRequest(f"the key {op.key[:60]} is named twice")
        changes[op.key] = None if op.remove else float(op.value)
    limits = stored.changed(entity, changes)
    return stored.set(entity, limits, context.clock.now_ms()) if is_real else None


def _entity_of(parts: Parts) -> Entity:
    names: dict[str, str] = {}
    for kind, name in parts:
        field = _field_of(kind)
        if field in names or name == "":
            raise InvalidRequest(f"the entity type {kind} is named twice, or with an empty name")
        names[field] = name or ANY
    if not names:
        raise InvalidRequest("expected a user, a client-id, or both")
    return Entity(**names)


def _field_of(entity_type: str) -> str:
    field = _FIELDS.get(entity_type)
    if field is None:
        raise InvalidRequest(
            f"the entity type {entity_type[:60]!r} is not supported; supported are {', '.join(_FIELDS)}"
        )
    return field
