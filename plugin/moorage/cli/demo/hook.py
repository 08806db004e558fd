"""The smaller demo: a long-lived Ray head asks for a gang of 2 x 2 GPUs and gives its nodes back when idle."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moorage.api.values import Fleet
from moorage.cli.demo import services
from moorage.cli.demo.parts import Part, PartFailed, Parts, free_port
from moorage.cli.demo.screen import Screen
from moorage.ray.autoscaler import long_lived_head, own_ip

#: Seconds until the script is done, and until what it used is given back.
GANG_LIMIT_S, IDLE_LIMIT_S = 180.0, 120.0
#: Seconds without work after which a raylet is given back.
IDLE_S = 5.0
GPUS = 4


def play(parts: Parts, screen: Screen, work: Path, source: Path, *, keep: bool) -> bool:
    """Run it; True if the gang came whole, in one rack, and nothing was held in the end."""
    with ray_folder() as folder:
        broker_part, broker = services.start_broker(parts, work)
        parts.wait_healthy(broker_part)
        agents = services.start_agents(parts, work, broker, None)
        address, token = start_head(parts, work, folder)
        parts.wait_healthy(*agents)
        start_autoscaler(parts, work, broker, address, token)
        racks, most = run_gang(parts, work, source, broker, address, token)
        left = wait_for_give_back(parts, screen, broker)
        told = f"{most} GPUs in {', '.join(sorted(racks)) or 'no rack'}, {left} held in the end"
        screen.show("gang", "done" if left == 0 else "failed", told)
        if keep:
            services.wait_for_interrupt(parts, screen)
        return len(racks) == 1 and most == GPUS and left == 0


@contextmanager
def ray_folder() -> Iterator[Path]:
    """A short folder for the head: Unix sockets below it have about 100 characters in all."""
    folder = Path(tempfile.mkdtemp(prefix="mrg-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start_head(parts: Parts, work: Path, folder: Path) -> tuple[str, Path]:
    """A Ray head with authentication on and no monitor of its own. Its address, and the file with its token."""
    token = work / "ray.token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    port = free_port()
    argv, env = long_lived_head(port, folder, token_file=token)
    address = f"{own_ip()}:{port}"
    head = parts.start(Part("ray head", argv, work / "ray-head.log", lambda: None, env, expendable=True))
    until = time.monotonic() + head.limit_s
    while head.process is None or head.process.poll() is None:
        if time.monotonic() > until:
            raise PartFailed(head.name, f"did not start within {head.limit_s:.0f} s", head.log)
        time.sleep(0.1)
    if head.process.returncode != 0:
        raise PartFailed(head.name, f"ended with exit status {head.process.returncode}", head.log)
    parts.screen.show(head.name, "healthy", f"{address}, no GPUs of its own")
    return address, token


def start_autoscaler(parts: Parts, work: Path, broker: services.Broker, address: str, token: Path) -> None:
    """The hook beside the head."""
    argv = services.moorage(
        "ray-autoscaler",
        f"--address={address}",
        f"--url={broker.url}",
        f"--token-file={broker.token_file}",
        f"--ray-token-file={token}",
        f"--idle-timeout={IDLE_S}",
        "--team=research",
    )
    parts.start(Part("autoscaler", argv, work / "ray-autoscaler.log", lambda: None))
    parts.screen.show("autoscaler", "running", f"gives back what is idle for {IDLE_S:.0f} s")


def run_gang(
    parts: Parts, work: Path, source: Path, broker: services.Broker, address: str, token: Path
) -> tuple[set[str], int]:
    """Run the script to its end. The racks in which GPUs were held, and the most that were held at once."""
    env = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    argv = [sys.executable, str(source / "ray_jobs" / "gang.py")]
    part = parts.start(Part("gang", argv, work / "gang.log", lambda: None, env, expendable=True))
    racks: set[str] = set()
    most = 0
    until = time.monotonic() + GANG_LIMIT_S
    with broker.client() as client:
        while part.process is not None and part.process.poll() is None and time.monotonic() < until:
            parts.check()
            used = held(client.fleet())
            racks |= used.keys()
            most = max(most, sum(used.values()))
            parts.screen.show("gang", "running", f"asks for 2 x 2 GPUs; holds {sum(used.values())}")
            time.sleep(0.5)
    if part.process is None or part.process.poll() != 0:
        raise PartFailed(part.name, "did not finish", part.log)
    return racks, most


def held(fleet: Fleet) -> dict[str, int]:
    """Rack -> GPUs held."""
    racks: dict[str, int] = {}
    for view in fleet.nodes:
        count = sum(1 for use in view.gpus if use.lease)
        if count:
            rack = view.node.domains.get("rack", view.node.id)
            racks[rack] = racks.get(rack, 0) + count
    return racks


def wait_for_give_back(parts: Parts, screen: Screen, broker: services.Broker) -> int:
    """Wait until the idle nodes are given back; GPUs that are still held at the time limit."""
    until = time.monotonic() + IDLE_LIMIT_S
    with broker.client() as client:
        while (left := sum(held(client.fleet()).values())) and time.monotonic() < until:
            parts.check()
            screen.show("gang", "running", f"done; {left} GPUs not given back yet")
            time.sleep(0.5)
    return left
