"""The environment of a job: a clean base, what the order says, secrets, devices, and our marks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from moorage import settings
from moorage.agent.names import ALLOCATION_MARK, HOME_MARK, MARKER, NODE_MARK
from moorage.api.values import Order

#: What passes from the agent's own environment. All else (its token, the operator's shell) stays with the agent.
PASSED = (
    *("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_HOME", "PYTHONPATH", "PYTHONPYCACHEPREFIX"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
PASSED_PREFIXES = ("LC_", "NCCL_")

SECRET_BYTES = 64 << 10


class BadSecret(Exception):
    """A secret reference that does not resolve on this node. Names the reference, never a value."""


def base(own: Mapping[str, str]) -> dict[str, str]:
    """What passes, with this interpreter's programs first in PATH and bytecode caching on (it saves seconds)."""
    passed = {key: value for key, value in own.items() if key in PASSED or key.startswith(PASSED_PREFIXES)}
    programs = str(Path(sys.executable).parent)
    passed["PATH"] = os.pathsep.join([programs, passed.get("PATH") or os.defpath])
    return {**passed, "PYTHONUNBUFFERED": "1"}


def job_env(order: Order, folder: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Base, job, order, secrets, then devices and completion marker.

    Raises:
        BadSecret: a reference does not resolve.
    """
    job = order.job
    made = base(own)
    if job is not None:
        made |= dict(job.env)
    made |= dict(order.env)
    if job is not None:
        made |= {name: secret(name, reference, own) for name, reference in job.secrets.items()}
    made.pop("PYTHONDONTWRITEBYTECODE", None)
    return made | devices(order.gpus) | {settings.MARKER: str(folder / MARKER)}


def devices(gpus: Sequence[int]) -> dict[str, str]:
    """Exactly these GPUs; CUDA must count them as NVML does. Without GPUs none is visible."""
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in sorted(gpus)),
    }


def marks(node: str, home: Path, allocation: str) -> dict[str, str]:
    """By which the processes are found again."""
    return {ALLOCATION_MARK: allocation, NODE_MARK: node, HOME_MARK: str(home)}


def secret(name: str, reference: str, own: Mapping[str, str]) -> str:
    """The value behind ``env:NAME`` or ``file:PATH``."""
    kind, _, where = reference.partition(":")
    match kind:
        case "env":
            return _from_env(name, where, own)
        case "file":
            return _from_file(name, where)
        case _:
            raise BadSecret(f"secret {name}={reference!r}: write env:NAME or file:PATH")


def _from_env(name: str, where: str, own: Mapping[str, str]) -> str:
    if where.startswith("MOORAGE_"):
        raise BadSecret(f"secret {name}=env:{where}: the agent's own settings are not given to jobs")
    if where not in own:
        raise BadSecret(f"secret {name}=env:{where}: set {where} in the environment of this node's agent")
    return own[where]


def _from_file(name: str, where: str) -> str:
    try:
        with Path(where).open("rb") as file:
            data = file.read(SECRET_BYTES + 1)
    except OSError as error:
        raise BadSecret(f"secret {name}=file:{where}: cannot be read on this node ({error.strerror})") from error
    if len(data) > SECRET_BYTES:
        raise BadSecret(f"secret {name}=file:{where}: larger than {SECRET_BYTES} bytes")
    return data.decode(errors="replace").rstrip("\r\n")


def command(entrypoint: Sequence[str]) -> list[str]:
    """argv; a first word ``python`` is the agent's own interpreter."""
    first = sys.executable if entrypoint[0] == "python" else entrypoint[0]
    return [first, *entrypoint[1:]]
