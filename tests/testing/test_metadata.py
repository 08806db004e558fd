"""The metadata servers keep the clouds' rules."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from moorage.core.invalid import Invalid
from moorage.testing.metadata import MetadataServer
from moorage.testing.scripted import wait_until

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with MetadataServer() as made:
        yield made


@pytest.fixture
def http(server: MetadataServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url(), trust_env=False) as client:
        yield client


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({TTL: "0"}, 400),
        ({TTL: "21601"}, 400),
        ({TTL: "x"}, 400),
        ({TTL: "-1"}, 400),
        ({TTL: "60", "X-Forwarded-For": "1.2.3.4"}, 403),
        ({TTL: "1"}, 200),
        ({TTL: "21600"}, 200),
    ],
)
def test_aws_tokens(http: httpx.Client, headers: dict[str, str], status: int) -> None:
    answer = http.put("/latest/api/token", headers=headers)
    assert answer.status_code == status
    if status == 200:
        assert answer.headers[TTL] == headers[TTL]
        assert len(answer.text) > 40


def test_aws_wants_a_token(http: httpx.Client) -> None:
    path = "/latest/meta-data/instance-life-cycle"
    assert http.get(path).status_code == 401
    assert http.get(path, headers={TOKEN: "made up"}).status_code == 401
    assert http.get("/latest/api/token").status_code == 405
    token = http.put("/latest/api/token", headers={TTL: "1"}).text
    assert http.get(path, headers={TOKEN: token}).text == "spot"
    assert http.post(path, headers={TOKEN: token}).status_code == 405
    wait_until(lambda: http.get(path, headers={TOKEN: token}).status_code == 401, 5, "the token's end")


def test_aws_notice(server: MetadataServer, http: httpx.Client) -> None:
    headers = {TOKEN: http.put("/latest/api/token", headers={TTL: "60"}).text}

    def get(path: str) -> httpx.Response:
        return http.get(f"/latest/meta-data/{path}", headers=headers)

    paths = ("spot/instance-action", "spot/termination-time", "events/recommendations/rebalance")
    for path in paths:
        assert get(path).status_code == 404
        assert "<title>404 - Not Found</title>" in get(path).text
    server.recommend()
    at = server.notice(seconds=120)
    text = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert abs(at - datetime.now(UTC) - timedelta(seconds=120)) < timedelta(seconds=2)
    assert get("spot/instance-action").json() == {"action": "terminate", "time": text}
    assert get("spot/termination-time").text == text
    assert set(get("events/recommendations/rebalance").json()) == {"noticeTime"}
    server.cancel()
    assert [get(path).status_code for path in paths] == [404, 404, 404]


def test_gcp(server: MetadataServer, http: httpx.Client) -> None:
    path = "/computeMetadata/v1/instance/preempted"
    assert http.get(path).status_code == 403
    google = {"Metadata-Flavor": "Google"}
    first = http.get(path, headers=google)
    assert (first.text, first.headers["Metadata-Flavor"]) == ("FALSE", "Google")
    wait = f"{path}?wait_for_change=true&timeout_sec=10&last_etag={first.headers['ETag']}"
    began = time.monotonic()
    threading.Timer(0.2, server.notice).start()
    changed = http.get(wait, headers=google, timeout=15)
    assert (changed.text, time.monotonic() - began < 5) == ("TRUE", True)
    assert changed.headers["ETag"] != first.headers["ETag"]
    late = http.get(wait.replace("timeout_sec=10", "timeout_sec=0"), headers=google)
    assert late.text == "TRUE"


def test_azure(server: MetadataServer, http: httpx.Client) -> None:
    path = "/metadata/scheduledevents"
    header = {"Metadata": "true"}
    assert http.get(f"{path}?api-version=2020-07-01").status_code == 400
    assert http.get(path, headers=header).status_code == 400
    empty = http.get(f"{path}?api-version=2020-07-01", headers=header).json()
    assert empty["Events"] == []
    at = server.notice(seconds=30)
    said = http.get(f"{path}?api-version=2020-07-01", headers=header).json()
    assert said["DocumentIncarnation"] > empty["DocumentIncarnation"]
    event = said["Events"][0]
    assert (event["EventType"], event["EventStatus"], event["Resources"]) == ("Preempt", "Scheduled", ["node"])
    assert event["NotBefore"] == at.strftime("%a, %d %b %Y %H:%M:%S GMT")


def test_each_node_has_its_own() -> None:
    with MetadataServer(["a", "b"]) as server, httpx.Client(trust_env=False) as http:
        server.notice(node="a")
        google = {"Metadata-Flavor": "Google"}
        path = "/computeMetadata/v1/instance/preempted"
        assert [http.get(server.url(node) + path, headers=google).text for node in "ab"] == ["TRUE", "FALSE"]
        assert http.get(server.url() + path, headers=google).status_code == 404
        with pytest.raises(Invalid, match="name one of: a, b"):
            server.notice(node="c")


def test_as_a_process_with_control(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", "moorage.testing.metadata", "--port-file", str(port_file), "--nodes", "a,b"]
    process = subprocess.Popen(command)
    try:
        wait_until(port_file.exists, 20, "the port file")
        with httpx.Client(base_url=f"http://127.0.0.1:{port_file.read_text()}", trust_env=False) as http:
            assert http.get("/_control/health").json()["nodes"] == ["a", "b"]
            said = http.post("/_control/notice", json={"node": "b", "seconds": 20}).json()
            assert datetime.fromisoformat(said["deadline"]) > datetime.now(UTC)
            google = {"Metadata-Flavor": "Google"}
            path = "/node/b/computeMetadata/v1/instance/preempted"
            assert http.get(path, headers=google).text == "TRUE"
            http.post("/_control/cancel", json={"node": "b"}).raise_for_status()
            assert http.get(path, headers=google).text == "FALSE"
            bad = http.post("/_control/notice", json={"node": "c"})
            assert (bad.status_code, "name one of" in json.loads(bad.text)["error"]) == (400, True)
            assert http.post("/_control/other", json={}).status_code == 404
    finally:
        process.terminate()
    assert process.wait(10) == 0
