"""The ``moorage`` command. Its parts load only what they use: ``moorage status`` imports no server and no Ray."""

from __future__ import annotations

import sys

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
    from moorage.api.errors import Invalid, MoorageError, Unavailable
    from moorage.cli.app import app

    try:
        app(prog_name="moorage")
    except ModuleNotFoundError as error:
        sys.exit(fail(missing(error), 2))
    except (Invalid, MoorageError) as error:
        sys.exit(fail(str(error), 3 if isinstance(error, Unavailable) else 2))
    except BrokenPipeError:
        sys.exit(0)


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
