"""The label selector that binds a placement group to its lease."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from moorage.core.invalid import Invalid
from moorage.core.request import Topology
from moorage.ray import gang_labels
from moorage.ray.autoscaler import long_lived_head


def test_each_group_gets_a_key_of_its_own() -> None:
    assert gang_labels() != gang_labels()
    assert list(gang_labels()) == ["moorage.io/gang"]


def test_all_wishes_are_labels() -> None:
    assert gang_labels(key="k", topology="rack", priority=5, capacity="spot") == {
        "moorage.io/gang": "k",
        "moorage.io/required": "rack",
        "moorage.io/priority": "5",
        "moorage.io/capacity": "spot",
    }
    assert gang_labels(key="k", topology=Topology(preferred="zone")) == {
        "moorage.io/gang": "k",
        "moorage.io/preferred": "zone",
    }


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"key": "two words"}, "at most 63 letters"),
        ({"key": "x" * 64}, "at most 63 letters"),
        ({"priority": -1}, "must not be negative"),
        ({"capacity": "cheap"}, "reserved, on-demand, spot"),
    ],
)
def test_what_ray_could_not_match_is_refused(wish: dict[str, object], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        gang_labels(**wish)  # type: ignore[arg-type]


def test_a_head_for_the_hook(tmp_path: Path) -> None:
    token = tmp_path / "token"
    argv, env = long_lived_head(6401, tmp_path, "head-7", token, ip="127.0.0.1")
    assert {"--head", "--no-monitor", "--port=6401", f"--temp-dir={tmp_path}"} <= set(argv)
    assert env["RAY_CLOUD_INSTANCE_ID"] == "head-7"
    assert env["RAY_NODE_TYPE_NAME"] == "head"
    assert env["RAY_enable_autoscaler_v2"] == "1"
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", str(token))
    assert long_lived_head(6401, tmp_path, ip="127.0.0.1")[1]["RAY_AUTH_MODE"] == "disabled"


def test_importing_the_room_and_the_hook_loads_no_ray() -> None:
    code = "import sys, moorage.ray, moorage.ray.autoscaler, moorage.ray.placement; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
