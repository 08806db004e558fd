"""The command tree."""

from __future__ import annotations

from typing import Annotated

import typer

from moorage import __version__
from moorage.cli import bench, config, demo, lease, nodes, operate, place, run, serve, token

app = typer.Typer(
    help="Moorage leases GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"moorage {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Moorage leases GPUs."""


app.command("serve")(serve.serve)
app.add_typer(nodes.agent_app, name="agent")
app.command("ray-autoscaler")(nodes.ray_autoscaler)
app.command("status")(lease.status)
app.command("leases")(lease.leases)
app.command("queue")(lease.queue)
app.command("explain")(lease.explain)
app.command("logs")(lease.logs)
app.command("release")(lease.release)
# As with `docker run`: what follows the command is the command's.
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("place")(place.place)
app.command("drain")(operate.drain)
app.command("cordon")(operate.cordon)
app.command("uncordon")(operate.uncordon)
app.command("lose")(operate.lose)
app.command("priority")(operate.priority)
app.command("freeze")(operate.freeze)
app.command("unfreeze")(operate.unfreeze)
app.add_typer(config.config_app, name="config")
app.add_typer(token.token_app, name="token")
app.add_typer(bench.bench_app, name="bench")
app.add_typer(demo.demo_app, name="demo")
