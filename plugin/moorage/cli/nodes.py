"""moorage agent and moorage ray-autoscaler: what runs beside the GPUs and beside a long-lived Ray head."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import socket
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from moorage import settings
from moorage.api.errors import Invalid, Unavailable
from moorage.cli.connect import TokenFile, Url, connection

agent_app = typer.Typer(
    help="Run on a GPU host: report it, and start and stop what the broker says.", no_args_is_help=True
)


def stop_on_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    return stop


def log_to_stderr() -> None:
    """Plain lines for a service manager."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)


def parse_labels(labels: list[str], rack: str | None) -> dict[str, str]:
    """``k=v`` pairs, and the rack as one. Raises `Invalid`."""
    made = {}
    for label in labels:
        key, sep, value = label.partition("=")
        if not (key and sep):
            raise Invalid("label", label, "write KEY=VALUE")
        made[key] = value
    if rack is not None:
        made["moorage.io/rack"] = rack
    return made


def check_token(url: str, token: str | None, node: str) -> None:
    """Refuse a token that may not speak for the node. A broker that is away is no reason: the agent waits for it.

    Raises:
        Denied: as the broker said it.
    """
    from moorage.client import Client

    with Client(url, token, retry_for=0) as client, contextlib.suppress(Unavailable):
        client.orders(node, 0, 0)


@agent_app.command()
def join(
    url: Annotated[str, typer.Argument(help="The broker.")] = settings.DEFAULT_URL,
    token_file: TokenFile = None,
    node: Annotated[str | None, typer.Option(help="Node name; else the host's.")] = None,
    state_dir: Annotated[Path, typer.Option(help="Where the agent remembers what it started.")] = Path("moorage-agent"),
    rack: Annotated[str | None, typer.Option(help="Rack: label moorage.io/rack.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="Node label KEY=VALUE; repeatable.")] = None,
    fake_gpus: Annotated[int | None, typer.Option(help="Stand in for hardware: this many fake GPUs.")] = None,
    fake_model: Annotated[str, typer.Option(help="Model name of the fake GPUs.")] = "FAKE",
    fake_sample_seconds: Annotated[
        float | None, typer.Option(help="Device seconds that a fake GPU takes for one sample.")
    ] = None,
    imds_url: Annotated[str | None, typer.Option(help="AWS instance metadata service to watch for notices.")] = None,
    gcp_url: Annotated[str | None, typer.Option(help="GCP metadata server to watch.")] = None,
    azure_url: Annotated[str | None, typer.Option(help="Azure metadata service to watch.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics on 127.0.0.1:PORT.")] = None,
) -> None:
    """Join this host to a broker and run until SIGTERM; jobs outlive the agent and are found again."""
    from moorage.agent import AgentConfig, run

    where = connection(url, token_file)
    config = AgentConfig(
        url=where.url,
        token=where.token,
        node=node or socket.gethostname(),
        state_dir=state_dir,
        labels=parse_labels(label or [], rack),
        fake_gpus=fake_gpus,
        fake_model=fake_model,
        fake_sample_seconds=fake_sample_seconds,
        imds_url=imds_url,
        gcp_url=gcp_url,
        azure_url=azure_url,
        metrics_port=metrics_port,
    )
    check_token(config.url, config.token, config.node)
    log_to_stderr()
    run(config, stop_on_signals())


def ray_autoscaler(
    address: Annotated[str, typer.Option(help="Address of the Ray head, host:port.")],
    url: Url = None,
    token_file: TokenFile = None,
    head_id: Annotated[str, typer.Option(help="RAY_CLOUD_INSTANCE_ID of the head.")] = "head",
    ray_token_file: Annotated[Path | None, typer.Option(help="Ray's cluster token; without, auth must be off.")] = None,
    team: Annotated[str | None, typer.Option(help="Team that pays, if the token does not say.")] = None,
    idle_timeout: Annotated[float, typer.Option(help="Seconds after which an idle node is given back.")] = 60.0,
) -> None:
    """Lease GPUs for a long-lived Ray head (started with --no-monitor), gang by gang."""
    from moorage.ray.autoscaler import AutoscalerConfig, run

    if not re.fullmatch(r".+:\d{1,5}", address):
        raise Invalid("address", address, "give host:port of the Ray head, for example 10.0.0.5:6379")
    where = connection(url, token_file)
    log_to_stderr()
    config = AutoscalerConfig(
        address=address,
        head_id=head_id,
        url=where.url,
        token=where.token,
        team=team,
        token_file=ray_token_file,
        idle_timeout_s=idle_timeout,
    )
    run(config, stop_on_signals())
