"""The OpenAPI document of the HTTP API, which the port serves at `GET /openapi.json`.

Paths and methods come from the router, the schemas of bodies from the types that handlers parse, the schemas of answers
from `answers.py`, and the texts from `operations.py`. A route without an operation is an error, so that every new route
is described. The port imports this module when the document is first requested, because nothing else needs it.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import msgspec

from duolog.bridge.http.access.requirements import ROUTES
from duolog.bridge.http.answers import Json
from duolog.bridge.http.openapi import answers
from duolog.bridge.http.openapi.operation import ABOVE_QUOTA, TEXT, ApiOperation, Query
from duolog.bridge.http.openapi.operations import OPERATIONS, PLACES

REFERENCE: Final = "#/components/schemas/{name}"


def api_routes(routes: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the routes, as methods and paths, without the pages of the console."""
    return tuple((method, path) for method, path in routes if not is_page(path))


def is_page(path: str) -> bool:
    """Return whether a path belongs to the console."""
    return path == "/" or path.startswith("/console/")


@cache
def document(routes: tuple[tuple[str, str], ...]) -> Json:
    """Return the document. Raises KeyError for a route that is missing in OPERATIONS."""
    operations = [(method, path, OPERATIONS[method, path]) for method, path in routes]
    types = [kind for _, _, each in operations for kind in (each.answer, *_bodies(each)) if kind is not None]
    schemas, components = msgspec.json.schema_components([*types, answers.Error], ref_template=REFERENCE)
    of_type = iter(schemas)
    paths: dict[str, Json] = {}
    for method, path, operation in operations:
        answer = None if operation.answer is None else next(of_type)
        bodies = [next(of_type) for _ in _bodies(operation)]
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation, answer, bodies)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Duolog HTTP API",
            "version": version("duolog"),
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
            "description": "Requests and answers are JSON. Times are wall milliseconds. POST and PATCH need the header "
            "`Content-Type: application/json`, also without a body. Where a string is expected, a number and a "
            "boolean are read as they are written.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(method: str, path: str, operation: ApiOperation, answer: Json | None, bodies: list[Json]) -> Json:
    found: Json = {"operationId": _operation_id(method, path), "summary": operation.summary}
    if operation.description:
        found["description"] = operation.description
    parameters = [*_places(path), *_parameters("query", operation.queries), *_parameters("header", operation.headers)]
    if parameters:
        found["parameters"] = parameters
    if bodies:
        body = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        found["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": {"application/json": {"schema": body}},
        }
    statuses = {**operation.statuses, **ABOVE_QUOTA} if ROUTES[method, path].quota else operation.statuses
    found["responses"] = _responses(operation, statuses, answer)
    return found


def _responses(operation: ApiOperation, statuses: Mapping[int, str], answer: Json | None) -> Json:
    """Return the responses: success, these statuses, and an error for all others."""
    content = {"text/plain": {"schema": TEXT}} if answer is None else {"application/json": {"schema": answer}}
    error = content if answer is None else {"application/json": {"schema": {"$ref": REFERENCE.format(name="Error")}}}
    found: Json = {str(operation.status): {"description": HTTPStatus(operation.status).phrase, "content": content}}
    for status, description in sorted(statuses.items()):
        shown = content if status < HTTPStatus.BAD_REQUEST else error
        found[str(status)] = {"description": description, "content": shown}
    found["default"] = {"description": "The request was refused.", "content": error}
    return found


def _parameters(place: str, parameters: Iterable[Query]) -> list[Json]:
    return [
        {
            "name": each.name,
            "in": place,
            "required": each.is_required,
            "description": each.description,
            "schema": each.schema,
        }
        for each in parameters
    ]


def _places(path: str) -> list[Json]:
    """Return the parameters of a path in their order."""
    return [
        {"name": found[1], "in": "path", "required": True, "description": PLACES[path[: found.end()]], "schema": TEXT}
        for found in re.finditer(r"{(\w+)}", path)
    ]


def _bodies(operation: ApiOperation) -> tuple[Any, ...]:
    if operation.body is None:
        return ()
    return operation.body if isinstance(operation.body, tuple) else (operation.body,)


def _operation_id(method: str, path: str) -> str:
    return "_".join([method.lower(), *re.findall(r"\w+", path.removeprefix("/api"))])
