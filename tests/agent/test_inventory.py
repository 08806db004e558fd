"""What the node has: fake, and by NVML from a stub library compiled for the test."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moorage.agent import AgentConfig, inventory, nvml
from moorage.core.invalid import Invalid

#: Four GPUs: 0 and 1 are joined by NVLink, 2 is alone, 3 is in MIG mode; memory of 2 is not known.
STUB = r"""
#include <stdio.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } Memory;
static long id(void *h) { return (long)h - 1; }
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { return "stub"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 4; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) { snprintf(s, n, "NVIDIA H100 80GB HBM3"); return 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { snprintf(s, n, "GPU-%ld", id(h)); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, Memory *m) { m->total = 80ULL << 30; return id(h) == 2 ? 3 : 0; }
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *next) {
    *now = *next = id(h) == 3; return id(h) == 2 ? 3 : 0;
}
int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *s) {
    *s = what == 2 && id(a) < 2 && id(b) < 2 ? 0 : 4; return what == 2 ? 0 : 2;
}
"""
PRINT = """
import dataclasses, json, logging, sys
logging.basicConfig(stream=sys.stderr)
from moorage.agent import nvml
print(json.dumps([dataclasses.asdict(gpu) for gpu in nvml.probe()]))
"""


def probe(env: dict[str, str]) -> tuple[list[dict[str, object]], str]:
    """GPUs and log of a probe in a process of its own: a library once loaded stays."""
    run = subprocess.run([sys.executable, "-c", PRINT], env=env, capture_output=True, text=True, timeout=30, check=True)
    return json.loads(run.stdout), run.stderr


@pytest.fixture
def stub(tmp_path: Path) -> dict[str, str]:
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("needs Linux and gcc to build the stub of libnvidia-ml.so.1")
    source = tmp_path / "nvml.c"
    source.write_text(STUB)
    command = ["gcc", "-shared", "-fPIC", "-w", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return {"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"}


def test_nvml(stub: dict[str, str]) -> None:
    gpus, said = probe(stub)
    assert [(g["index"], g["uuid"], g["model"], g["memory"], g["island"], g["healthy"]) for g in gpus] == [
        (0, "GPU-0", "H100", 80 << 30, 0, None),
        (1, "GPU-1", "H100", 80 << 30, 0, None),
        (2, "GPU-2", "H100", None, 1, None),
    ]
    assert "GPU 3 is in MIG mode and is not offered" in said


def test_no_driver_is_no_gpus_and_says_so(tmp_path: Path) -> None:
    gpus, said = probe({"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"})
    if gpus:
        pytest.skip("this host has GPUs")
    assert "no GPUs: NVML does not start" in said


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA Graphics Device", "Graphics Device"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert nvml.short_name(name) == short


@pytest.mark.parametrize(
    ("indices", "pairs", "islands"),
    [
        ([], [], {}),
        ([0], [], {0: 0}),
        ([0, 1, 2, 3], [(0, 1), (2, 3)], {0: 0, 1: 0, 2: 1, 3: 1}),
        ([0, 1, 2, 3], [(2, 3), (1, 2), (0, 3)], {0: 0, 1: 0, 2: 0, 3: 0}),
        ([1, 4, 6], [(4, 6)], {1: 0, 4: 1, 6: 1}),
    ],
)
def test_islands(indices: list[int], pairs: list[tuple[int, int]], islands: dict[int, int]) -> None:
    assert nvml.islands_of(indices, pairs) == islands


def test_fake_is_what_it_says(tmp_path: Path) -> None:
    config = AgentConfig(url="http://x", node="n", state_dir=tmp_path, fake_gpus=2, fake_model="H100", cpus=3, memory=7)
    has = inventory.take(config)
    assert (has.cpus, has.memory) == (3, 7)
    assert [(gpu.index, gpu.uuid, gpu.model, gpu.island) for gpu in has.gpus] == [
        (0, "FAKE-n-0", "H100", 0),
        (1, "FAKE-n-1", "H100", 0),
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [("node", "bad name"), ("node", "-x"), ("fake_gpus", -1), ("fake_sample_seconds", -0.1), ("report_every_s", 0)],
)
def test_config_refuses_what_can_never_be_right(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(Invalid, match=field):
        AgentConfig(**({"url": "http://x", "node": "n", "state_dir": tmp_path} | {field: value}))
