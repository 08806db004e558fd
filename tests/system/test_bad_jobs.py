"""Training jobs that are broken: the lease fails, its reason quotes what the job said last, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moorage.core.lease import Outcome

if TYPE_CHECKING:
    from conftest import Fleet

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]

#: A training loop that meets bad data after some steps.
IN_THE_LOOP = """
from moorage.ray import ElasticTrainer

def train_loop(config, job):
    for number, batch in enumerate(job.batches(80, epochs=2, seed=0)):
        if number == 3:
            raise ValueError("sample 17 has no label")

if __name__ == "__main__":
    ElasticTrainer(train_loop, global_batch=8).fit()
"""

#: What is wrong, the script (None: it is not there), whether the command line sees that, and the reason.
BROKEN = [
    pytest.param(
        "raise ValueError('no such data set')", "exited 1; last line: ValueError: no such data set", id="raises"
    ),
    pytest.param(
        "print('looks fine')",
        "exited 0 without finishing: no completion marker; last line: looks fine",
        id="does not finish",
        marks=pytest.mark.path,
    ),
    pytest.param("import sys; print('bye'); sys.exit(7)", "exited 7; last line: bye", id="exits"),
    pytest.param(IN_THE_LOOP, "exited 1; last line: ValueError: sample 17 has no label", id="raises in the loop"),
]


@pytest.mark.parametrize(("script", "reason"), BROKEN)
def test_a_broken_job_fails_its_lease(fleet: Fleet, tmp_path: Path, script: str, reason: str) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(script)
    words = ["run", "--ray", "--workers", "1..2", "--done-when", "marker", "--code", code, "--", "python", "train.py"]
    run = subprocess.run(
        [sys.executable, "-m", "moorage.cli", *map(str, words)],
        env={**os.environ, "MOORAGE_URL": fleet.broker.url, "MOORAGE_TOKEN": fleet.broker.token},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (view,) = fleet.client.find({})
    assert (run.returncode, view.lease.outcome, view.lease.epoch) == (1, Outcome.FAILED, 1), run.stderr
    assert view.lease.reason == f"attempt 1 {reason}"
    assert run.stderr.splitlines()[-1].startswith(f"failed: attempt 1 {reason} · $0.")
    fleet.assert_nothing_leaked()
