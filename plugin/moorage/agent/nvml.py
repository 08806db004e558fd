"""GPUs by NVML. The library is loaded only when asked, and a host without it is a node without GPUs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from itertools import combinations
from types import ModuleType
from typing import Any

from moorage.core.fleet import Gpu

log = logging.getLogger(__name__)

#: nvmlGpuP2PCapsIndex_t NVLINK and NVML_P2P_STATUS_OK. Given as numbers: nvidia-ml-py's constant for READ is a tuple by
#: a stray comma, and its neighbours have moved before.
P2P_NVLINK = 2
P2P_OK = 0

#: First word of the driver's name that says which GPU it is.
_MODEL = re.compile(r"\b(G[BH]?\d{3}|[ABHLVPT]\d{1,4}[A-Za-z]?|RTX \w+(?: Ada)?)\b")


def probe() -> tuple[Gpu, ...]:
    """All GPUs that can be leased whole. GPUs in MIG mode are named in the log and left out."""
    try:
        import pynvml
    except ImportError:
        log.warning("no GPUs: nvidia-ml-py is not installed (pip install 'moorage[agent]')")
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.warning("no GPUs: NVML does not start (%s); is the NVIDIA driver installed?", error)
        return ()
    try:
        return _gpus(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _gpus(lib: ModuleType) -> tuple[Gpu, ...]:
    handles = {index: _ask(lib, lib.nvmlDeviceGetHandleByIndex, index) for index in range(lib.nvmlDeviceGetCount())}
    opened = {index: handle for index, handle in handles.items() if handle is not None and not _mig(lib, index, handle)}
    islands = _islands(lib, opened)
    gpus = [_gpu(lib, index, handle, islands.get(index)) for index, handle in opened.items()]
    lost = [index for index, handle in handles.items() if handle is None]
    if lost:
        log.warning("NVML cannot open GPU %s: reported as not healthy", ", ".join(map(str, lost)))
    gpus += [Gpu(index=index, uuid=f"unknown-{index}", model="unknown", healthy=False) for index in lost]
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _gpu(lib: ModuleType, index: int, handle: Any, island: int | None) -> Gpu:
    memory = _ask(lib, lib.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        index=index,
        uuid=_ask(lib, lib.nvmlDeviceGetUUID, handle) or f"unknown-{index}",
        model=short_name(_ask(lib, lib.nvmlDeviceGetName, handle) or "unknown"),
        memory=None if memory is None else int(memory.total),
        island=island,
        # NVML has no word for healthy; that it can be opened is not enough to say so.
        healthy=None,
    )


def _ask(lib: ModuleType, function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where the driver, the device or the library cannot tell."""
    try:
        return function(*arguments)
    except lib.NVMLError as error:
        log.debug("%s%r: %s", getattr(function, "__name__", function), arguments, error)
        return None


def _mig(lib: ModuleType, index: int, handle: Any) -> bool:
    mode = _ask(lib, lib.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != lib.NVML_DEVICE_MIG_ENABLE:
        return False
    log.warning("GPU %d is in MIG mode and is not offered: only whole GPUs are leased", index)
    return True


def short_name(name: str) -> str:
    """``NVIDIA H100 80GB HBM3`` -> ``H100``; a name without a known word loses only the vendor."""
    found = _MODEL.search(name)
    return found.group(1) if found else name.removeprefix("NVIDIA ").strip()


def _islands(lib: ModuleType, handles: dict[int, Any]) -> dict[int, int]:
    """Index -> island, by union-find over NVLink pairs; empty where no pair can be told."""
    linked = {pair: _linked(lib, handles[pair[0]], handles[pair[1]]) for pair in combinations(handles, 2)}
    if len(handles) > 1 and all(answer is None for answer in linked.values()):
        return {}
    return islands_of(list(handles), [pair for pair, answer in linked.items() if answer])


def islands_of(indices: list[int], pairs: list[tuple[int, int]]) -> dict[int, int]:
    """Connected components, numbered from 0 by their lowest index."""
    parent = {index: index for index in indices}

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for one, other in pairs:
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    numbers = {top: number for number, top in enumerate(sorted({root(index) for index in indices}))}
    return {index: numbers[root(index)] for index in indices}


def _linked(lib: ModuleType, one: Any, other: Any) -> bool | None:
    """Whether NVLink joins two GPUs, by peer status, else by their links. None: cannot be told."""
    status = _ask(lib, lib.nvmlDeviceGetP2PStatus, one, other, P2P_NVLINK)
    if status is not None:
        return bool(status == P2P_OK)
    ends, others = _ends(lib, one), _ends(lib, other)
    if ends is None or others is None:
        return None
    # Behind an NVSwitch a GPU's links end at the switch, never at a GPU.
    return bool("switch" in ends and "switch" in others) or _address(lib, other) in ends


def _ends(lib: ModuleType, handle: Any) -> set[str] | None:
    """Where the active links of a GPU end: ``switch``, or a PCI address. None: the GPU cannot tell."""
    ends: set[str] = set()
    known = False
    for link in range(lib.NVML_NVLINK_MAX_LINKS):
        state = _ask(lib, lib.nvmlDeviceGetNvLinkState, handle, link)
        known = known or state is not None
        if not state:
            continue
        kind = _ask(lib, lib.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == lib.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            ends.add("switch")
        elif kind == lib.NVML_NVLINK_DEVICE_TYPE_GPU:
            ends.add(_bus(_ask(lib, lib.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)))
    return ends if known else None


def _address(lib: ModuleType, handle: Any) -> str:
    return _bus(_ask(lib, lib.nvmlDeviceGetPciInfo, handle))


def _bus(info: Any) -> str:
    """domain:bus:device; "" where it cannot be told. Text forms differ in the domain's width, numbers do not."""
    return "" if info is None else f"{info.domain:08x}:{info.bus:02x}:{info.device:02x}"
