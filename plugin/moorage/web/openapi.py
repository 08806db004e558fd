"""The OpenAPI document of the JSON routes, from the same table as the routes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from moorage import __version__
from moorage.api.codec import adapter
from moorage.api.protocols import Api
from moorage.api.routes import BYTES, JSON, PREFIX, ROUTES, Route

REFERENCE = "#/components/schemas/{model}"
Schemas = Mapping[tuple[Any, Any], Mapping[str, Any]]


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    schemas, definitions = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(PREFIX + route.path, {})[route.verb.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Moorage", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _schemas() -> tuple[Schemas, Mapping[str, Any]]:
    """Schemas by (method, argument) for what is sent, and by (method, "") for answers."""
    inputs: list[tuple[Any, Any, TypeAdapter[Any]]] = []
    for route in ROUTES:
        for name, kind in route.kinds.items():
            inputs.append(((route.method, name), "validation", adapter(kind)))
        if route.answer is not None:
            inputs.append(((route.method, ""), "serialization", adapter(route.answer)))
    found, definitions = TypeAdapter.json_schemas(inputs, ref_template=REFERENCE)
    return {key: schema for (key, _), schema in found.items()}, definitions


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    parameters = [_parameter(route, name, "path", schemas) for name in route.in_path]
    parameters += [_parameter(route, name, "query", schemas) for name in route.in_query]
    operation: dict[str, Any] = {
        "operationId": route.method,
        "summary": (getattr(Api, route.method).__doc__ or "").strip(),
        "parameters": parameters,
        "responses": {"default": {"description": "A problem document (RFC 9457)"}, **_answer(route, schemas)},
    }
    body = _body(route, schemas)
    return operation | ({"requestBody": {"required": True, "content": body}} if body else {})


def _parameter(route: Route, name: str, place: str, schemas: Schemas) -> dict[str, Any]:
    return {"name": name, "in": place, "required": route.required(name), "schema": schemas[route.method, name]}


def _answer(route: Route, schemas: Schemas) -> dict[str, Any]:
    if route.answer is None:
        return {"204": {"description": "Done"}}
    return {"200": {"description": "The answer", "content": _content(route.answer, schemas[route.method, ""])}}


def _body(route: Route, schemas: Schemas) -> dict[str, Any] | None:
    if route.body is not None:
        return _content(route.kinds[route.body], schemas[route.method, route.body])
    if not route.in_object:
        return None
    schema = {
        "type": "object",
        "properties": {name: schemas[route.method, name] for name in route.in_object},
        "required": [name for name in route.in_object if route.required(name)],
    }
    return _content(dict, schema)


def _content(kind: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {BYTES: {}} if kind is bytes else {JSON: {"schema": schema}}
