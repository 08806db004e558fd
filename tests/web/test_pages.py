"""Pages as HTML: relative everywhere, honest when the broker is away, and no string of a user's is markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from web_samples import TRAIN, Reading, airflow, demo, lease
from web_server import served

from moorage.api.auth import Principal, Role
from moorage.api.errors import Unavailable
from moorage.client import Client
from moorage.web import create_app

OPERATOR = Principal(name="olga", role=Role.OPERATOR)


def mounted(api: object, prefix: str = "/some/where", principal: Principal = OPERATOR) -> tuple[TestClient, str]:
    root = FastAPI()
    root.mount(prefix, create_app(lambda _: api, lambda _: principal, api=False))  # type: ignore[arg-type,return-value]
    return TestClient(root), prefix


@pytest.mark.parametrize("path", ["/", f"/leases/{TRAIN}", "/leases/none"])
def test_every_address_in_a_page_is_relative(path: str) -> None:
    browser, prefix = mounted(Reading(demo()))
    html = browser.get(prefix + path).text
    found = re.findall(r'(?:href|src|action)="([^"]*)"', html)
    assert found
    assert all(address.startswith(".") for address in found), found
    # And they are there.
    base = (prefix + path).rsplit("/", 1)[0] + "/"
    for address in {one.partition("?")[0] for one in found}:
        assert browser.get(base + address).status_code == 200, address


def test_pages_forbid_what_is_not_their_own() -> None:
    browser, prefix = mounted(Reading(demo()))
    answer = browser.get(f"{prefix}/")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert "style=" not in answer.text


def test_the_first_data_is_inside_the_page() -> None:
    browser, prefix = mounted(Reading(demo()))
    inside = re.search(r'id="data">(.*?)</script>', browser.get(f"{prefix}/").text, re.DOTALL)
    assert inside
    assert json.loads(inside[1])["totals"] == browser.get(f"{prefix}/fleet.json").json()["totals"]


def test_names_are_never_markup() -> None:
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    fleet = demo()
    fleet = replace(
        fleet, leases=(lease(TRAIN, airflow(hostile, hostile), reason=hostile, team="t"), *fleet.leases[1:])
    )
    browser, prefix = mounted(Reading(fleet))
    for path in ("/", f"/leases/{TRAIN}", f"/leases/{hostile.replace('/', '')}"):
        html = browser.get(prefix + path).text
        assert "<script>alert" not in html
        assert "<img src=x" not in html


class Away(Reading):
    def fleet(self):
        raise Unavailable("no answer from http://broker after 3 s: connection refused")


def test_a_broker_that_is_away_is_said_on_the_page() -> None:
    browser, prefix = mounted(Away(demo()))
    answer = browser.get(f"{prefix}/")
    assert answer.status_code == 503
    assert "connection refused" in answer.text
    assert browser.get(f"{prefix}/fleet.json").json()["detail"].endswith("connection refused")


def test_an_unknown_lease_is_a_page_too() -> None:
    browser, prefix = mounted(Reading(demo()))
    answer = browser.get(f"{prefix}/leases/none")
    assert answer.status_code == 404
    assert "moorage leases" in answer.text


def test_an_operator_acts() -> None:
    api = Reading(demo())
    browser, prefix = mounted(api)
    assert browser.post(f"{prefix}/actions/drain", json={"node": "n1", "client_id": "c"}).status_code == 204
    assert (
        browser.post(f"{prefix}/actions/cordon", json={"node": "n1", "on": True, "client_id": "d"}).status_code == 204
    )
    body = {"lease": TRAIN, "reason": "r", "client_id": "e"}
    assert browser.post(f"{prefix}/actions/release", json=body).status_code == 204
    assert [name for name, _ in api.calls] == ["drain", "cordon", "release"]
    assert api.calls[1][1] == {"node": "n1", "on": True, "client_id": "d"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("drain", {"client_id": "c"}, 422),
        ("drain", {"node": "n1"}, 422),
        ("drain", ["n1"], 422),
        ("lose", {"node": "n1", "client_id": "c"}, 404),
        ("apply_policy", {}, 404),
    ],
)
def test_other_actions_are_refused(path: str, body: object, status: int) -> None:
    api = Reading(demo())
    browser, prefix = mounted(api)
    answer = browser.post(f"{prefix}/actions/{path}", json=body)
    assert (answer.status_code, api.calls) == (status, [])
    assert answer.json()["detail"]


def test_a_viewer_does_not() -> None:
    api = Reading(demo())
    browser, prefix = mounted(api, principal=Principal(name="v", role=Role.VIEWER))
    answer = browser.post(f"{prefix}/actions/drain", json={"node": "n1", "client_id": "c"})
    assert (answer.status_code, api.calls) == (403, [])
    assert browser.get(f"{prefix}/fleet.json").json()["operator"] is False


def test_authenticate_may_be_a_coroutine_function() -> None:
    async def authenticate(request: object) -> Principal:
        return OPERATOR

    app = create_app(lambda _: Reading(demo()), authenticate, api=False)  # type: ignore[arg-type,return-value]
    assert TestClient(app).get("/").status_code == 200


def test_pages_over_a_client_of_another_moorage(url: str) -> None:
    """As the Airflow plugin does it: the page's api is itself spoken to over HTTP."""
    with Client(url, "operator-token") as client:
        pages = create_app(client.acting, lambda _: OPERATOR, api=False)
        with served(pages) as address, TestClient(pages, base_url=address) as browser:
            assert browser.get("/").status_code == 200
            assert browser.get("/fleet.json").json()["totals"]["held_of"] == "of 0 held"
            assert browser.get("/leases/none").status_code == 404
