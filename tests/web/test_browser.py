"""The pages in Chromium: what people see and do. Pictures go to build/screenshots/."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from web_samples import TRAIN, Reading, demo, empty, large, long_names
from web_server import served, who

from moorage.api.auth import Principal, Role
from moorage.api.errors import Unavailable
from moorage.web import bearer, create_app

CHROMIUM = os.environ.get("MOORAGE_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
#: As Airflow's UI frames a plugin's page.
SANDBOX = "allow-scripts allow-same-origin allow-forms allow-downloads"

pytestmark = [pytest.mark.system, pytest.mark.path]
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if CHROMIUM is None:
    pytestmark.append(pytest.mark.skip(reason="no chromium on the PATH, and MOORAGE_TEST_CHROMIUM names none"))


class Flaky(Reading):
    """Answers until it is told to be away."""

    away = False

    def fleet(self):
        if self.away:
            raise Unavailable("no answer from http://broker after 3 s: connection refused")
        return super().fleet()


APIS = {"demo": Flaky(demo()), "empty": Reading(empty()), "large": Reading(large()), "long": Reading(long_names())}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Every sample mounted below its name, and Airflow's frame around one."""
    root = FastAPI()
    person = Principal(name="mara", role=Role.OPERATOR)
    for name, api in APIS.items():
        root.mount(f"/{name}", create_app(lambda _, api=api: api, lambda _: person, api=False))  # type: ignore[misc]
    root.mount("/own", create_app(lambda _: APIS["demo"], bearer(who)))  # type: ignore[arg-type,return-value]

    @root.get("/framed")
    def framed() -> HTMLResponse:
        head = '<!doctype html><html class="dark"><link rel="icon" href="data:,"><body style="margin:0">'
        frame = f'<iframe src="/demo/" sandbox="{SANDBOX}" width="1200" height="850" style="border:0"></iframe>'
        return HTMLResponse(head + frame)

    with served(root) as url:
        yield url


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with sync_api.sync_playwright() as play:
        profile = tmp_path_factory.mktemp("chromium")
        # Crash reports would go to the home folder.
        home = {**os.environ, "HOME": str(profile), "XDG_CONFIG_HOME": str(profile), "XDG_CACHE_HOME": str(profile)}
        context = play.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=FLAGS, headless=True, env=home
        )
        context.set_default_timeout(15_000)
        yield context
        context.close()


@pytest.fixture
def page(chromium, site) -> Iterator[object]:
    """A page on which nothing may be complained about."""
    APIS["demo"].away = False
    APIS["demo"].calls.clear()
    made = chromium.new_page()
    made.set_viewport_size({"width": 1440, "height": 900})
    complaints: list[str] = []
    made.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.complaints = complaints
    yield made
    made.close()
    assert complaints == []


def shows(page, *texts: str) -> None:
    for text in texts:
        sync_api.expect(page.get_by_text(text, exact=False).first).to_be_visible()


def no_wider_than_the_window(page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_demo_fleet(page, site, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{site}/demo/")
    shows(page, "8 held", "rack r1", "node-b2", "goes in", "train_digits", "$13.76", "largest free rack is r1 with 4")
    assert page.locator(".node").count() == 4
    assert page.locator(f'.groups .cell[data-lease="{TRAIN}"]').count() == 4
    page.screenshot(path=PICTURES / f"fleet-{scheme}.png", full_page=True)


def test_no_node_yet(page, site) -> None:
    page.goto(f"{site}/empty/")
    shows(page, "No node has joined yet", "moorage agent join URL --token-file FILE", "Nothing waits.")
    page.screenshot(path=PICTURES / "fleet-empty.png")


def test_a_thousand_nodes_and_the_filter(page, site) -> None:
    page.set_viewport_size({"width": 1600, "height": 1100})
    page.goto(f"{site}/large/")
    shows(page, "6,287", "rack r40")
    assert page.locator(".node").count() == 1000
    no_wider_than_the_window(page)
    page.screenshot(path=PICTURES / "fleet-large.png")
    page.keyboard.press("/")
    page.keyboard.type("gpu-0999")
    sync_api.expect(page.locator(".node")).to_have_count(1)
    page.locator("#filter").fill("no such thing")
    shows(page, "No node or lease contains this text.")


@pytest.mark.parametrize("width", [1280, 760])
def test_long_names_stay_inside(page, site, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{site}/long/")
    shows(page, "Disruptions are frozen", "stale")
    no_wider_than_the_window(page)
    page.screenshot(path=PICTURES / f"fleet-long-names-{width}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_lease(page, site, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{site}/demo/leases/{TRAIN}")
    shows(page, "Where the money went", "$0.8423")
    # The same words are titles of the timeline's marks.
    shows(page.locator(".columns"), "node-b1 is lost", "step 1,800")
    shows(page.locator("#log"), "loss 0.1617")
    assert page.locator("svg.timeline rect").count() == 10
    no_wider_than_the_window(page)
    page.screenshot(path=PICTURES / f"lease-{scheme}.png", full_page=True)


def test_an_operator_drains_with_the_keyboard(page, site) -> None:
    page.goto(f"{site}/demo/")
    page.locator(".node").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.querySelector('.name').textContent") == "node-a2"
    page.keyboard.press("Enter")
    shows(page.locator("dialog"), "GPU 3", "unhealthy", "64 CPU cores")
    page.screenshot(path=PICTURES / "node-dialog.png")
    page.get_by_role("button", name="Drain").click()
    shows(page.locator("dialog"), "leases move away at their next checkpoint")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("dialog")).to_be_hidden()
    ((name, arguments),) = APIS["demo"].calls
    assert (name, arguments["node"]) == ("drain", "node-a2")
    assert len(arguments["client_id"]) > 20


def test_a_lease_is_released_after_a_question(page, site) -> None:
    page.goto(f"{site}/demo/")
    page.get_by_role("button", name="Release train_digits").click()
    page.get_by_role("button", name="Cancel").click()
    assert APIS["demo"].calls == []
    page.goto(f"{site}/demo/leases/{TRAIN}")
    page.get_by_role("button", name="Release").click()
    page.locator("dialog").get_by_role("button", name="Release").click()
    sync_api.expect(page.locator("dialog")).to_be_hidden()
    assert APIS["demo"].calls[0][1]["lease"] == TRAIN


def test_hovering_lights_a_lease(page, site) -> None:
    page.goto(f"{site}/demo/")
    page.locator(f'.groups .cell[data-lease="{TRAIN}"]').first.hover()
    shows(page, "node-a1 GPU 0: train_digits")
    assert page.locator(".groups .cell.lit").count() == 4


def test_a_refresh_keeps_focus_and_says_when_the_broker_is_away(page, site) -> None:
    page.goto(f"{site}/demo/")
    page.locator("#filter").focus()
    APIS["demo"].away = True
    shows(page, "connection refused, shown as of")
    assert page.evaluate("document.activeElement.id") == "filter"
    shows(page, "node-a1")
    APIS["demo"].away = False
    sync_api.expect(page.locator("[data-say]")).to_have_text("live")
    # The browser's own word for the 503 answers.
    page.complaints[:] = [said for said in page.complaints if "503" not in said]


def test_inside_airflows_frame(page, site) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(f"{site}/framed")
    frame = page.frame_locator("iframe")
    sync_api.expect(frame.get_by_text("rack r2")).to_be_visible()
    assert frame.locator("html").get_attribute("data-theme") == "dark"
    frame.get_by_role("button", name="Release train_digits").click()
    frame.locator("dialog").get_by_role("button", name="Release").click()
    sync_api.expect(frame.locator("dialog")).to_be_hidden()
    assert [name for name, _ in APIS["demo"].calls] == ["release"]
    page.screenshot(path=PICTURES / "fleet-in-airflow-frame.png")
    frame.get_by_role("link", name="train_digits").click()
    sync_api.expect(frame.get_by_text("Where the money went")).to_be_visible()
    # Chromium's standing remark about this sandbox.
    page.complaints[:] = [said for said in page.complaints if "sandbox" not in said]


def test_logging_in(page, site) -> None:
    page.goto(f"{site}/own/")
    assert page.url.endswith("/own/login")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    shows(page, "This token is not known")
    page.screenshot(path=PICTURES / "login.png")
    page.get_by_label("Token").fill("viewer-token")
    page.get_by_role("button", name="Log in").click()
    shows(page, "rack r1", "vera")
    assert not page.get_by_role("button", name="Release train_digits").is_visible()
    page.get_by_role("button", name="Log out").click()
    shows(page, "Token")
    page.complaints[:] = [said for said in page.complaints if "401" not in said]
