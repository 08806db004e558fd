"""A browser logs in with a token once."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from web_samples import Reading, demo
from web_server import PEOPLE, who

from moorage.api.auth import Principal
from moorage.api.errors import Denied
from moorage.web import bearer, create_app

HTML = {"Accept": "text/html"}


def browser(known: dict[str, Principal] | None = None) -> TestClient:
    def find(secret: str) -> Principal:
        if known is None:
            return who(secret)
        if secret not in known:
            raise Denied("not known")
        return known[secret]

    api = Reading(demo())
    return TestClient(create_app(lambda _: api, bearer(find)), follow_redirects=False)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(("path", "to"), [("/", "login"), ("/leases/abc", "../login")])
def test_a_page_without_a_session_leads_to_the_form(path: str, to: str) -> None:
    answer = browser().get(path, headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, to)


def test_logging_in_and_out() -> None:
    page = browser()
    assert page.post("/login", json={"token": "nope"}).status_code == 401
    assert page.post("/login", json={"token": ""}).status_code == 422
    assert page.post("/login", json=["x"]).status_code == 422
    answer = page.post("/login", json={"token": " viewer-token "})
    cookie = answer.headers["set-cookie"]
    assert answer.status_code == 204
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "viewer-token" not in cookie
    assert page.get("/").status_code == 200
    page.post("/logout", json={})
    assert page.get("/").status_code == 401


def test_a_revoked_token_ends_its_sessions() -> None:
    known = {"t": PEOPLE["viewer-token"]}
    page = browser(known)
    page.post("/login", json={"token": "t"})
    assert page.get("/").status_code == 200
    known.clear()
    assert page.get("/").status_code == 401
