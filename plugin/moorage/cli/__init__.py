"""The ``moorage`` command. Its parts load only what they use: ``moorage status`` imports no server and no Ray."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point: a mistake becomes one sentence on standard error and exit status 2, an absent broker 3."""
    from rich.console import Console

    from moorage.api.errors import Invalid, MoorageError, Unavailable
    from moorage.cli.app import app

    try:
        app(prog_name="moorage")
    except (Invalid, MoorageError) as error:
        Console(stderr=True, soft_wrap=True).print(f"moorage: {error}", style="red", markup=False, highlight=False)
        sys.exit(3 if isinstance(error, Unavailable) else 2)
    except BrokenPipeError:
        sys.exit(0)
