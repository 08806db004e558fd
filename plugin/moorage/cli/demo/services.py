"""The parts of a demo: what each is started with, and when it is healthy."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from moorage.api.auth import Role
from moorage.cli.demo.parts import Part, Parts, free_port
from moorage.cli.demo.screen import Screen
from moorage.client import Client

#: USD per GPU-hour of the demo's two pools.
ON_DEMAND_PRICE, SPOT_PRICE = "3.20", "1.12"
#: Device seconds that a fake GPU takes for one sample of 8 x 8 pixels.
SAMPLE_SECONDS = 0.0045

POLICY = """\
storage = "{storage}"
rebalance_every_s = 1.0
node_stale_s = 6.0
start_s = 120.0

[[pools]]
name = "spot"
capacity = "spot"
price = "{spot}"
on_demand_price = "{on_demand}"
match = {{ "moorage.io/pool" = "spot" }}

[[pools]]
name = "on-demand"
capacity = "on-demand"
price = "{on_demand}"

[[teams]]
name = "research"
quota = 12
"""


@dataclass(frozen=True)
class FakeNode:
    """A GPU host of the demo."""

    name: str
    rack: str
    pool: str


#: Two racks of two nodes; each rack has one spot node.
NODES = (
    FakeNode("gpu-a1", "rack-a", "on-demand"),
    FakeNode("gpu-a2", "rack-a", "spot"),
    FakeNode("gpu-b1", "rack-b", "on-demand"),
    FakeNode("gpu-b2", "rack-b", "spot"),
)
GPUS_PER_NODE = 4


@dataclass(frozen=True)
class Broker:
    """A running broker of the demo, and how to talk to it as its operator."""

    url: str
    token_file: Path
    database: Path

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def client(self, timeout: float = 10.0, retry_for: float = 20.0) -> Client:
        return Client(self.url, self.token, timeout=timeout, retry_for=retry_for)


def answers(url: str, path: str, shown: str) -> Callable[[], str | None]:
    """Healthy once the URL answers 200."""

    def healthy() -> str | None:
        try:
            return shown if httpx.get(url + path, timeout=2).status_code == httpx.codes.OK else None
        except httpx.HTTPError:
            return None

    return healthy


def moorage(*words: str) -> list[str]:
    """argv of the command line of this very installation."""
    return [sys.executable, "-m", "moorage.cli", *words]


def start_broker(parts: Parts, work: Path, *more: str) -> tuple[Part, Broker]:
    """The broker on SQLite."""
    policy = work / "moorage.toml"
    policy.write_text(POLICY.format(storage=work / "checkpoints", spot=SPOT_PRICE, on_demand=ON_DEMAND_PRICE))
    port = free_port()
    broker = Broker(f"http://127.0.0.1:{port}", work / "operator.token", work / "moorage.db")
    argv = moorage(
        "serve",
        f"--database=sqlite:///{broker.database}",
        f"--port={port}",
        f"--policy={policy}",
        f"--first-token-file={broker.token_file}",
        *more,
    )
    return parts.start(Part("broker", argv, work / "broker.log", answers(broker.url, "/healthz", broker.url))), broker


def start_agents(parts: Parts, work: Path, broker: Broker, metadata_url: str | None) -> list[Part]:
    """One agent per node, each with a token that can report only its node."""
    started = []
    with broker.client() as client:
        for node in NODES:
            token = work / f"{node.name}.token"
            token.touch(mode=0o600)
            token.write_text(client.make_token(node.name, Role.AGENT, node=node.name))
            argv = moorage(
                "agent",
                "join",
                broker.url,
                f"--token-file={token}",
                f"--node={node.name}",
                f"--rack={node.rack}",
                f"--label=moorage.io/pool={node.pool}",
                f"--fake-gpus={GPUS_PER_NODE}",
                f"--fake-sample-seconds={SAMPLE_SECONDS}",
                f"--state-dir={work / 'agents' / node.name}",
                *([f"--imds-url={metadata_url}/node/{node.name}"] if metadata_url else []),
            )
            started.append(parts.start(Part(node.name, argv, work / f"{node.name}.log", joined(broker, node))))
    return started


def joined(broker: Broker, node: FakeNode) -> Callable[[], str | None]:
    """Healthy once the broker has its report."""

    def healthy() -> str | None:
        with broker.client() as client:
            known = {view.node.id: view for view in client.fleet().nodes}
        view = known.get(node.name)
        if view is None or view.condition != "ready":
            return None
        return f"{len(view.gpus)} fake GPUs, {node.rack}, {node.pool} at ${view.node.price}/GPU-h"

    return healthy


def start_metadata(parts: Parts, work: Path) -> tuple[Part, str]:
    """The cloud's instance metadata service, one per node."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    names = ",".join(node.name for node in NODES)
    argv = [sys.executable, "-m", "moorage.testing.metadata", "--port", str(port), "--nodes", names]
    part = Part("metadata", argv, work / "metadata.log", answers(url, "/_control/health", f"{url} speaks AWS IMDSv2"))
    return parts.start(part), url


def start_mlflow(parts: Parts, work: Path) -> tuple[Part, str]:
    """An MLflow tracking server on SQLite."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host=127.0.0.1",
        f"--port={port}",
        "--workers=1",
        f"--backend-store-uri=sqlite:///{work / 'mlflow.db'}",
        f"--artifacts-destination={work / 'mlflow-artifacts'}",
    ]
    env = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    return parts.start(Part("mlflow", argv, work / "mlflow.log", answers(url, "/health", url), env)), url


def tokens_for_airflow(work: Path, broker: Broker) -> dict[str, str]:
    """Environment of Airflow: a submitter's connection for its tasks, and the fleet page's own token."""
    with broker.client() as client:
        tasks = client.make_token("airflow-tasks", Role.SUBMITTER, team="research")
        page = client.make_token("airflow-page", Role.OPERATOR)
    page_token = work / "airflow-page.token"
    page_token.touch(mode=0o600)
    page_token.write_text(page)
    connection = {"conn_type": "moorage", "host": broker.url, "password": tasks}
    return {
        "AIRFLOW_CONN_MOORAGE_DEFAULT": json.dumps(connection),
        "MOORAGE_URL": broker.url,
        "MOORAGE_TOKEN_FILE": str(page_token),
    }


def prune(root: Path, keep: int = 3) -> None:
    """Forget the oldest demos' folders, so that a demo a day does not fill the disk."""
    runs = sorted((path for path in root.glob("run-*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for path in runs[:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def wait_for_interrupt(parts: Parts, screen: Screen) -> None:
    """Leave everything up; the node that the cloud took stays away."""
    screen.say("Everything stays up. Ctrl-C ends it.")
    try:
        while True:
            parts.check()
            time.sleep(1)
    except KeyboardInterrupt:
        screen.say("stopping")
