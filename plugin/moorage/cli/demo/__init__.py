"""moorage demo: the main job end to end on real parts, and the smaller one for a long-lived Ray head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moorage.api.errors import Invalid

if TYPE_CHECKING:
    from moorage.cli.demo.parts import Parts
    from moorage.cli.demo.screen import Screen

demo_app = typer.Typer(help="Show the main job end to end on real parts.", invoke_without_command=True)

Keep = Annotated[bool, typer.Option("--keep", help="Leave everything up until Ctrl-C.")]
Folder = Annotated[Path, typer.Option("--dir", help="Where the demo puts its files.")]


@demo_app.callback()
def demo(
    context: typer.Context,
    keep: Keep = False,
    folder: Folder = Path("build/demo"),
    source: Annotated[Path, typer.Option(help="The checkout with dags/ and ray_jobs/.")] = Path(),
) -> None:
    """A DAG leases GPUs, trains elastically through a spot interruption, and costs dollars in MLflow."""
    if context.invoked_subcommand is None:
        from moorage.cli.demo.digits import play

        source = source.resolve()
        if not (source / "dags" / "train_digits.py").is_file():
            raise Invalid("source", str(source), "name a checkout of Moorage: it has dags/train_digits.py")
        stage(folder, lambda parts, screen, work: play(parts, screen, work, source, keep=keep))


@demo_app.command("ray")
def ray_(
    keep: Keep = False,
    folder: Folder = Path("build/demo"),
    source: Annotated[Path, typer.Option(help="The checkout with ray_jobs/.")] = Path(),
) -> None:
    """A long-lived Ray head asks for a gang of 2 x 2 GPUs: it comes whole, in one rack, and is given back."""
    from moorage.cli.demo.hook import play

    source = source.resolve()
    if not (source / "ray_jobs" / "gang.py").is_file():
        raise Invalid("source", str(source), "name a checkout of Moorage: it has ray_jobs/gang.py")
    stage(folder, lambda parts, screen, work: play(parts, screen, work, source, keep=keep))


def stage(folder: Path, play: Callable[[Parts, Screen, Path], bool]) -> None:
    """Set up a demo's folder, run it under its guard, and leave with its exit status."""
    from moorage.api.ids import new_id
    from moorage.cli.demo.guard import guarded
    from moorage.cli.demo.parts import PartFailed, Parts
    from moorage.cli.demo.screen import Screen
    from moorage.cli.demo.services import prune

    mark = new_id()
    root = folder.resolve()
    root.mkdir(parents=True, exist_ok=True)
    prune(root)
    work = root / f"run-{mark[-12:]}"
    work.mkdir()

    def main() -> int:
        screen = Screen()
        parts = Parts(mark, screen)
        try:
            with screen:
                return 0 if play(parts, screen, work) else 1
        except PartFailed as failure:
            screen.console.print(f"\nfailed: {failure}", style="red", markup=False, highlight=False)
            return 1
        except KeyboardInterrupt:
            screen.console.print("\nstopped", style="yellow")
            return 130
        finally:
            parts.stop()

    raise typer.Exit(guarded(mark, main))
