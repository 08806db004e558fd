"""moorage bench: the published benchmarks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from moorage.cli import show

bench_app = typer.Typer(help="Run a published benchmark.", no_args_is_help=True)

Out = Annotated[Path | None, typer.Option(help="Write the JSON object here.")]
Quick = Annotated[bool, typer.Option("--quick", help="A subset that checks the machinery; never a result.")]


@bench_app.command()
def broker(out: Out = None, quick: Quick = False) -> None:
    """A broker with 10,000 nodes, 1,000 queued requests and 200 renewals a second, killed and away for five minutes."""
    from moorage.bench import broker as bench
    from moorage.bench.result import document, publish

    began = time.monotonic()
    rows = bench.run(bench.QUICK if quick else bench.FULL, show.out)
    publish(show.out, document("broker", rows, began), out)


@bench_app.command()
def page(
    files: Annotated[list[Path], typer.Argument(help="JSON files that benchmarks wrote with --out.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("docs/benchmarks.md"),
) -> None:
    """Write the page of results from JSON files."""
    from moorage.bench.page import page as render

    out.write_text(render(files))
    show.out.print(f"wrote {out}")
