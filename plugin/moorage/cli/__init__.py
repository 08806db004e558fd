"""The ``moorage`` command. Its parts load only what they use: ``moorage status`` imports no server and no Ray."""

from __future__ import annotations

import re
import sys
from typing import Any

#: Top-level module -> the extra that brings it.
EXTRAS = {
    "airflow": "airflow",
    "alembic": "server",
    "fastapi": "server",
    "mlflow": "mlflow",
    "prometheus_client": "agent",
    "psutil": "agent",
    "pynvml": "agent",
    "ray": "ray",
    "sqlalchemy": "server",
    "uvicorn": "server",
}


def main() -> None:
    """Entry point: a mistake becomes one sentence on standard error and exit status 2, an absent broker 3."""
    from typer import BadParameter

    from moorage.api.errors import Invalid, MoorageError, Unavailable
    from moorage.cli.app import app

    # Typer has it from click or brings it along, by version.
    UsageError: type[Exception] = BadParameter.__mro__[1]  # noqa: N806
    try:
        status = app(prog_name="moorage", standalone_mode=False)
    except UsageError as error:
        sys.exit(misused(error))
    except ModuleNotFoundError as error:
        sys.exit(fail(missing(error), 2))
    except (Invalid, MoorageError) as error:
        sys.exit(fail(str(error), 3 if isinstance(error, Unavailable) else 2))
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        sys.exit(fail(of_system(error), 2))
    sys.exit(status if isinstance(status, int) else 0)


def misused(error: Any) -> int:
    """A wrong option or command, in one sentence; nothing more where the help was just printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2
    what = re.sub(r"^Invalid value for '([^']+)':( Value error,)?", r"\1:", error.format_message())
    command = error.ctx.command_path if error.ctx else "moorage"
    return fail(f"{' '.join(what.split()).rstrip('.')} (`{command} -h` helps)", 2)


def of_system(error: OSError) -> str:
    """What the operating system refused, and to what."""
    what = f"{error.filename}: " if error.filename else ""
    return f"{what}{error.strerror or error}"


def fail(sentence: str, status: int) -> int:
    """Say it on standard error; returns `status`."""
    from rich.console import Console

    Console(stderr=True, soft_wrap=True).print(f"moorage: {sentence}", style="red", markup=False, highlight=False)
    return status


def missing(error: ModuleNotFoundError) -> str:
    """Which extra to install. A module that no extra brings is our own mistake: raised again."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        raise error
    words = {"demo", "bench"} & set(sys.argv[1:2])
    extra = "demo" if words else EXTRAS[module]
    return f"this command needs {module}: pip install 'moorage[{extra}]'"
