"""Nobody comes in without a token, and nobody does more than their role: every route, walked."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from web_server import PEOPLE, who

from moorage.api.auth import Role
from moorage.api.routes import PREFIX, ROUTES
from moorage.broker import Broker
from moorage.broker.authorize import TABLE
from moorage.web import bearer, create_app

#: Open on purpose: what a browser needs to log in, and what a load balancer asks.
OPEN = {"/healthz", "/login", "/icon.svg", "/static"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def app(broker: Broker) -> FastAPI:
    return create_app(broker.acting, bearer(who), broker)


@pytest.fixture
def browser(app: FastAPI) -> TestClient:
    return TestClient(app, raise_server_exceptions=False, follow_redirects=False)


def walk(app: FastAPI) -> list[tuple[str, str]]:
    """(verb, path) of every route of the app, those of mounted apps by their prefix."""
    found: list[tuple[str, str]] = []
    for route in app.routes:
        path = route.path  # type: ignore[attr-defined]
        verbs = route.methods if isinstance(route, APIRoute) else {"GET"}
        found += [(verb, path) for verb in verbs]
    return found


def real(path: str) -> str:
    path = "/static/moorage.css" if path == "/static" else path
    for name in ("lease", "node", "digest", "token_id", "method"):
        path = path.replace(f"{{{name}}}", "x")
    return path


@pytest.mark.parametrize("token", [None, "wrong", ""])
def test_every_route_but_the_open_ones_wants_a_token(app: FastAPI, browser: TestClient, token: str | None) -> None:
    routes = walk(app)
    assert len(routes) > len(ROUTES)
    headers = JSON if token is None else JSON | {"Authorization": f"Bearer {token}"}
    for verb, path in routes:
        answer = browser.request(verb, real(path), headers=headers, content=b"{}" if verb == "POST" else None)
        if path in OPEN:
            assert answer.status_code != 401 or verb == "POST", path
        else:
            assert answer.status_code == 401, (verb, path, answer.status_code)
            assert answer.headers["content-type"] == "application/problem+json"


def test_what_does_not_exist_wants_a_token_too(browser: TestClient) -> None:
    for path in ("/docs", "/redoc", "/openapi.json", "/nothing", f"{PREFIX}/nothing", "/static/../app.py"):
        assert browser.get(path).status_code in (401, 404), path
    assert browser.get("/openapi.json").status_code == 401


@pytest.mark.parametrize("token", PEOPLE)
def test_too_weak_a_role_gets_403(browser: TestClient, token: str) -> None:
    role = PEOPLE[token].role
    refused = 0
    for route in ROUTES:
        if role in TABLE[route.method].roles:
            continue
        answer = call(browser, token, route.method)
        assert answer.status_code == 403, (role, route.method, answer.text)
        assert str(role) in answer.json()["detail"]
        refused += 1
    assert refused > 0


def call(browser: TestClient, token: str, method: str):
    """A well-formed call of a method."""
    samples = {
        "submission": {"owner": {"a": "b"}, "request": {}, "client_id": "c"},
        "request": {},
        "report": {
            "node": "n1", "incarnation": "i", "version": "0.1.0", "gpus": [], "cpus": 1, "memory": 1, "labels": {},
        },
    }  # fmt: skip
    objects = {
        "run": {"job": {"entrypoint": ["x"]}, "client_id": "c"},
        "watch": {"watcher": "w"},
        "unwatch": {"watcher": "w"},
        "resize": {"workers": [1, 2], "client_id": "c"},
        "release": {"reason": "r", "client_id": "c"},
        "give_back": {"allocations": [], "client_id": "c"},
        "note": {"notes": {}},
        "renew": {"epoch": 1, "progress": {"phase": "training"}},
        "cordon": {"on": True, "client_id": "c"},
        "priority": {"priority": 1, "client_id": "c"},
        "freeze": {"on": True, "client_id": "c"},
        "apply_policy": {"policy": {}, "client_id": "c"},
        "make_token": {"name": "n", "role": "viewer"},
    }
    route = next(route for route in ROUTES if route.method == method)
    query = (
        {"since": "0", "timeout": "0", "lease": "l", "epoch": "1", "offset": "0", "owner": "{}"}
        if route.in_query
        else {}
    )
    query = {name: value for name, value in query.items() if name in route.in_query}
    sent = samples.get(route.body or "") or objects.get(method) or {"client_id": "c"}
    headers = JSON | {"Authorization": f"Bearer {token}"}
    body = {"json": sent} if route.verb == "POST" else {}
    return browser.request(route.verb, real(PREFIX + route.path), params=query, headers=headers, **body)


def test_pages_are_for_people(browser: TestClient) -> None:
    for token, person in PEOPLE.items():
        allowed = person.role in (Role.VIEWER, Role.OPERATOR)
        for path in ("/", "/fleet.json"):
            answer = browser.get(path, headers={"Authorization": f"Bearer {token}"})
            assert (answer.status_code == 200) == allowed, (path, token)


@pytest.mark.parametrize("token", PEOPLE)
@pytest.mark.parametrize("action", ["cordon", "drain", "release"])
def test_only_operators_act_from_a_page(browser: TestClient, token: str, action: str) -> None:
    body = {"node": "n9", "lease": "l", "on": True, "reason": "r", "client_id": "c"}
    answer = browser.post(f"/actions/{action}", json=body, headers={"Authorization": f"Bearer {token}"})
    if PEOPLE[token].role is Role.OPERATOR:
        assert answer.status_code == 404, "the broker has no such node or lease"
    else:
        assert answer.status_code == 403


def test_a_write_from_another_sites_form_is_refused(browser: TestClient) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": "Bearer operator-token"}
    for path in ("/actions/drain", "/login", "/logout", f"{PREFIX}/freeze"):
        assert browser.post(path, content="on=true", headers=form).status_code == 415
        assert browser.post(path, headers={"Authorization": "Bearer operator-token"}).status_code == 415


def test_health_is_open_and_says_whether_the_broker_lives(broker: Broker) -> None:
    for alive, status, word in ((None, 200, "unknown"), (lambda: True, 200, "alive"), (lambda: False, 503, "dead")):
        answer = TestClient(create_app(broker.acting, bearer(who), alive=alive)).get("/healthz")
        assert (answer.status_code, answer.json()["broker"]) == (status, word)


def test_pages_only_has_no_api(broker: Broker) -> None:
    browser = TestClient(create_app(broker.acting, bearer(who), api=False))
    answer = browser.get(f"{PREFIX}/fleet", headers={"Authorization": "Bearer operator-token"})
    assert answer.status_code == 404


def test_the_openapi_document_has_every_call(browser: TestClient) -> None:
    found = browser.get(f"{PREFIX}/openapi.json", headers={"Authorization": "Bearer viewer-token"}).json()
    calls = {operation["operationId"] for path in found["paths"].values() for operation in path.values()}
    assert calls == {route.method for route in ROUTES}
    assert "LeaseView" in found["components"]["schemas"]


def test_acting_for_somebody_is_an_operators_token(browser: TestClient, broker: Broker) -> None:
    said = {"Moorage-Act-For": "m%C3%A1ra"}
    headers = JSON | {"Authorization": "Bearer viewer-token"} | said
    assert browser.get(f"{PREFIX}/fleet", headers=headers).status_code == 403
    headers["Authorization"] = "Bearer operator-token"
    answer = browser.post(f"{PREFIX}/freeze", headers=headers, json={"on": True, "client_id": "c"})
    assert answer.status_code == 204
    told = broker.acting(PEOPLE["operator-token"]).events()
    assert any("mára via olga" in (event.who + event.sentence) for event in told)


def test_another_version_is_refused_with_a_sentence(browser: TestClient) -> None:
    headers = {"Authorization": "Bearer operator-token", "Moorage-Version": "0.9.0"}
    answer = browser.get(f"{PREFIX}/fleet", headers=headers)
    assert answer.status_code == 422
    assert "use a version at most one minor away" in answer.json()["detail"]


def test_bodies_have_a_limit(browser: TestClient) -> None:
    headers = {"Authorization": "Bearer operator-token", "Content-Type": "application/octet-stream"}
    assert browser.post(f"{PREFIX}/what-if", content=b"x" * (2 << 20) + b"y", headers=headers).status_code == 413
    chunks = (b"x" * (1 << 20) for _ in range(3))
    assert browser.post(f"{PREFIX}/what-if", content=chunks, headers=headers).status_code == 413
    assert browser.post(f"{PREFIX}/code", content=b"x" * (3 << 20), headers=headers).status_code == 422, "not a zip"
