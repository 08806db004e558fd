"""moorage serve: the broker, its HTTP API and pages, and the MLflow recorder, in one process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from moorage.api.auth import Principal, Role
from moorage.api.errors import Conflict, Invalid
from moorage.cli.config import load_policy

if TYPE_CHECKING:
    from fastapi import FastAPI

    from moorage.broker import Broker

#: Seconds that open requests get when the server stops; long polls end at once.
STOP_S = 3


def serve(
    database: Annotated[str, typer.Option(help="SQLAlchemy URL; SQLite or PostgreSQL.")] = "sqlite:///moorage.db",
    host: Annotated[str, typer.Option(help="Address to bind; anything but loopback wants TLS in front.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8740,
    public_url: Annotated[str | None, typer.Option(help="URL that agents and jobs reach; else host and port.")] = None,
    policy: Annotated[Path | None, typer.Option(help="Policy (TOML) for a database that has none yet.")] = None,
    mlflow: Annotated[str | None, typer.Option(help="MLflow tracking URI: record every lease there.")] = None,
    experiment: Annotated[str, typer.Option(help="MLflow experiment.")] = "moorage",
    fleet_url: Annotated[str | None, typer.Option(help="Where people see the fleet page, for links in MLflow.")] = None,
    first_token_file: Annotated[
        Path | None, typer.Option(help="Write the first operator token here (0600) if the database has no token.")
    ] = None,
    url_file: Annotated[Path | None, typer.Option(help="Write the URL here once requests are answered.")] = None,
    standby: Annotated[bool, typer.Option("--standby", help="Wait for the writer's lock instead of failing.")] = False,
) -> None:
    """Serve the broker: the only writer of its database."""
    survive_signals()
    listener = bind(host, port)
    url = public_url or f"http://{host}:{listener.getsockname()[1]}"
    broker = open_broker(database, policy, url, mlflow, standby)
    stop = threading.Event()
    try:
        offer_first_token(broker, first_token_file)
        broker.start()
        recorder = (
            start_recorder(broker, mlflow, experiment, fleet_url, recorder_spool(database), stop) if mlflow else None
        )
        serve_http(make_app(broker), listener, lambda: announce(url, url_file))
        stop.set()
        if recorder:
            recorder.join(timeout=15)
    finally:
        broker.close()


def survive_signals() -> None:
    """uvicorn raises the signal that stopped it again, once it has stopped: the broker must still be closed then."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, bound before anything else starts so that the URL is known. Raises `Invalid`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Invalid("port", port, f"choose a free one ({error.strerror})") from error
    listener.listen(2048)
    return listener


def open_broker(database: str, policy: Path | None, url: str, mlflow: str | None, standby: bool) -> Broker:
    """Take the writer's lock and read the state."""
    from moorage.broker import Broker

    first = load_policy(policy) if policy else None
    return Broker.open(database, policy=first, public_url=url, mlflow_uri=mlflow, wait=standby)


def offer_first_token(broker: Broker, path: Path | None) -> None:
    """Write the first token if there is none and the operator named a file; otherwise say how to get one."""
    if path is None:
        if not broker.has_tokens():
            typer.echo("no token exists yet: start once with --first-token-file FILE to get an operator's", err=True)
        return
    secret = broker.first_token()
    if secret is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secret + "\n")
    typer.echo(f"wrote the first operator token to {path}: export MOORAGE_TOKEN_FILE={path}", err=True)


def make_app(broker: Broker) -> FastAPI:
    """The standalone web application over this broker."""
    from moorage.web import bearer, create_app

    return create_app(broker.acting, bearer(broker.authenticate), broker, alive=broker.alive)


def recorder_spool(database: str) -> Path:
    """Beside a SQLite database; in the working folder otherwise."""
    from sqlalchemy import make_url

    where = make_url(database)
    beside = where.get_backend_name() == "sqlite" and where.database not in (None, "", ":memory:")
    return Path(f"{where.database}.mlflow-spool") if beside else Path("moorage.mlflow-spool")


def start_recorder(
    broker: Broker, uri: str, experiment: str, fleet_url: str | None, spool: Path, stop: threading.Event
) -> threading.Thread:
    """Record into MLflow from a thread of its own: a dead tracking server never slows the broker."""
    from moorage.mlflow import Recorder

    api = broker.acting(Principal(name="mlflow-recorder", role=Role.OPERATOR))
    recorder = Recorder(api, uri, experiment=experiment, spool=spool, fleet_url=fleet_url)

    def record() -> None:
        try:
            recorder.run(stop)
        except Conflict as error:
            typer.echo(f"moorage: nothing is recorded into MLflow: {error}", err=True)

    thread = threading.Thread(target=record, name="mlflow-recorder", daemon=True)
    thread.start()
    return thread


def announce(url: str, path: Path | None) -> None:
    """Say that requests are answered."""
    typer.echo(f"moorage serves {url}", err=True)
    if path is not None:
        part = path.with_suffix(".part")
        part.write_text(url + "\n")
        part.replace(path)


def serve_http(app: FastAPI, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Run uvicorn on the socket until SIGINT or SIGTERM; `ready` is called once requests are answered."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            self._loop = asyncio.get_running_loop()
            ready()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # Else it would wait for long polls until its patience ends.
            self._loop.call_soon_threadsafe(app.state.end_polls)
            super().handle_exit(sig, frame)

    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_S, lifespan="on")
    Server(config).run(sockets=[listener])
