"""The page inside Airflow: nobody gets in without an Airflow user, and viewers change nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.routing import Mount, Route

from moorage.airflow import security
from moorage.airflow.plugin import MooragePlugin
from moorage.api.auth import Principal, Role
from moorage.api.errors import Denied

#: Only says the version: load balancers ask it.
OPEN = {"/healthz"}
#: Nothing listens there: whoever gets past the door meets `Unavailable`.
NO_BROKER = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def page() -> Iterator[FastAPI]:
    """The app as the API server gets it, mounted, with a database that only knows no token to be revoked."""
    from airflow import settings
    from airflow.models.revoked_token import RevokedToken

    RevokedToken.__table__.create(settings.engine, checkfirst=True)
    create_auth_manager()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOORAGE_URL", NO_BROKER)
        patch.setenv("MOORAGE_TOKEN", "page")
        patch.setattr(security, "RETRY_FOR", 0.0)
        outer = FastAPI()
        (mounted,) = MooragePlugin().fastapi_apps
        outer.mount(mounted["url_prefix"], mounted["app"])
        yield outer


def signed_in(role: str) -> str:
    """A token of Airflow itself."""
    return create_auth_manager().generate_jwt(SimpleAuthManagerUser(username=f"the-{role}", role=role, teams=[]))


def paths(page: FastAPI) -> list[tuple[str, str]]:
    """(method, path) of every route, a file for a mounted folder."""
    mounted = next(route for route in page.routes if isinstance(route, Mount) and route.path == "/moorage")
    found = []
    for route in mounted.app.routes:  # type: ignore[attr-defined]
        if isinstance(route, Mount):
            found.append(("GET", f"{route.path}/fleet.css"))
        elif isinstance(route, Route) and route.path not in OPEN:
            path = route.path.replace("{lease}", "abc").replace("{method}", "cordon")
            found += [(method, path) for method in sorted(route.methods or ())]
    return found


def ask(page: FastAPI, method: str, path: str, **more: object) -> int:
    headers = {"content-type": "application/json", **more.pop("headers", {})}  # type: ignore[dict-item]
    body = {"node": "n1", "on": True, "client_id": "c"} if method == "POST" else None
    client = TestClient(page, raise_server_exceptions=False, cookies=more.pop("cookies", None))  # type: ignore[arg-type]
    return client.request(method, f"/moorage{path}", json=body, headers=headers).status_code


def test_there_is_a_page(page: FastAPI) -> None:
    assert {path for _, path in paths(page)} >= {"/", "/leases/abc", "/icon.svg", "/actions/cordon"}


def test_anonymous_gets_nothing(page: FastAPI) -> None:
    answers = {(method, path): ask(page, method, path) for method, path in paths(page)}
    assert set(answers.values()) == {401}, answers


@pytest.mark.parametrize("token", ["", "nonsense", "a.b.c"])
def test_a_wrong_token_gets_nothing(page: FastAPI, token: str) -> None:
    answers = {ask(page, method, path, headers={"authorization": f"Bearer {token}"}) for method, path in paths(page)}
    assert answers <= {401, 403}


def test_a_header_counts_before_a_cookie(page: FastAPI) -> None:
    admin = {"_token": signed_in("admin")}
    assert ask(page, "GET", "/icon.svg", cookies=admin) == 200
    assert ask(page, "GET", "/icon.svg", cookies=admin, headers={"authorization": "Bearer nonsense"}) == 403


@pytest.mark.parametrize(
    ("role", "look", "act"), [("viewer", 503, 403), ("user", 503, 403), ("op", 503, 503), ("admin", 503, 503)]
)
def test_who_may_do_what(page: FastAPI, role: str, look: int, act: int) -> None:
    cookies = {"_token": signed_in(role)}
    assert ask(page, "GET", "/fleet.json", cookies=cookies) == look
    assert ask(page, "POST", "/actions/cordon", cookies=cookies) == act


def test_a_form_of_another_site_cannot_act(page: FastAPI) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert ask(page, "POST", "/actions/cordon", cookies={"_token": signed_in("admin")}, headers=headers) == 415


def test_a_viewers_api_only_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORAGE_URL", NO_BROKER)
    broker = security.Broker()
    viewer = broker.acting(Principal(name="vi", role=Role.VIEWER))
    assert callable(viewer.fleet)
    for name in ("cordon", "release", "make_token", "apply_policy", "submit", "_http"):
        with pytest.raises(Denied, match="not change it"):
            getattr(viewer, name)
    assert callable(broker.acting(Principal(name="op", role=Role.OPERATOR)).cordon)
