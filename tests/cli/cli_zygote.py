"""Starts `moorage` commands by fork: processes like any other, that need not load the same modules each time."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import traceback
from typing import Any

from moorage.api.errors import Unavailable
from moorage.cli import main
from moorage.client import Client

#: What every command loads.
MODULES = ("typer", "rich.console", "rich.table", "httpx", "pydantic", "moorage.client", "moorage.cli.app")


def become(call: dict[str, Any]) -> int:
    """Be the command of this call; returns its exit status."""
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, call["out"], os.O_WRONLY),
        (2, call["err"], os.O_WRONLY),
    ):
        os.dup2(os.open(name, flags | os.O_CREAT, 0o600), number)
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["env"])
    sys.argv = ["moorage", *call["words"]]
    # It looks at the streams when it is loaded.
    importlib.reload(importlib.import_module("moorage.cli.show"))
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter itself would end
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def warm_up() -> None:
    """Load what a command loads, also while it runs."""
    for module in MODULES:
        importlib.import_module(module)
    sys.argv = ["moorage", "run", "--workers", "4..2", "true"]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    with Client("http://127.0.0.1:9", "nobody", retry_for=0) as client, contextlib.suppress(Unavailable):
        client.fleet()


def serve() -> None:
    warm_up()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(become(json.loads(line)))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
