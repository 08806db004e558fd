"""A command whose extra is not installed says which one to install."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Hides a module, then runs the command line.
HIDE = """
import sys
sys.modules[sys.argv.pop(1)] = None
from moorage.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("sqlalchemy", ["serve"], "server"),
        ("uvicorn", ["serve", "--database=sqlite://", "--port=0"], "server"),
        ("psutil", ["agent", "join"], "agent"),
        ("ray", ["ray-autoscaler", "--address=127.0.0.1:1"], "ray"),
        ("psutil", ["demo"], "demo"),
        ("sqlalchemy", ["bench", "broker", "--quick"], "demo"),
    ],
)
def test_the_extra_is_named(module: str, command: list[str], extra: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", HIDE, module, *command],
        env={**os.environ, "MOORAGE_TOKEN": "any"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 2, run.stderr
    assert run.stderr.splitlines()[-1] == f"moorage: this command needs {module}: pip install 'moorage[{extra}]'"
