"""`moorage serve` as a process: it ends in order when asked to, and keeps its first token to its owner."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from moorage.client import Client

#: Real waits: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow


def wait_for(path: Path, process: subprocess.Popen[str], limit_s: float = 60) -> str:
    until = time.monotonic() + limit_s
    while not path.is_file():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.05)
    return path.read_text().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_closes_its_database(tmp_path: Path, number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "moorage.cli", "serve", f"--database=sqlite:///{tmp_path / 'm.db'}", "--port=0"]
    argv += [f"--url-file={tmp_path / 'url'}", f"--first-token-file={tmp_path / 'token'}"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        url = wait_for(tmp_path / "url", process)
        with Client(url, (tmp_path / "token").read_text().strip()) as client, ThreadPoolExecutor(1) as pool:
            poll = pool.submit(client.events, 10_000, None, 500, 60)
            assert httpx.get(f"{url}/healthz").json()["broker"] == "alive"
            asked = time.monotonic()
            process.send_signal(number)
            assert poll.result(timeout=20) == []
        assert time.monotonic() - asked < 15, "it waited for a long poll"
        told = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode == 0, told
    assert f"moorage serves {url}" in told
    assert "Traceback" not in told
    assert not (tmp_path / "m.db-wal").exists(), "the last connection was not closed"
    token = tmp_path / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text().strip() not in told
    assert token.stat().st_size > 32
