"""Starts `moorage` commands by fork: processes like any other, that need not load the same modules each time."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from moorage.cli import main

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


def serve() -> None:
    for module in MODULES:
        importlib.import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(become(json.loads(line)))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
