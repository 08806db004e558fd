"""What the keepers of one agent share: configuration, folders, the lock around Ray's starts, a few threads."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from moorage import settings
from moorage.agent import environment
from moorage.agent.bundle import CodeStore
from moorage.agent.config import AgentConfig
from moorage.api.errors import Invalid
from moorage.api.values import Order

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One agent's surroundings."""

    config: AgentConfig
    home: Path
    #: Address of this node's Ray daemons.
    ip: str
    code: CodeStore
    #: For what may take long: fetching and unpacking code.
    threads: Executor
    lock: StartLock
    own: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)

    def env(self, order: Order, folder: Path) -> dict[str, str]:
        """The job's environment with our marks. Raises `BadSecret`."""
        made = environment.job_env(order, folder, self.own)
        if self.config.fake_gpus is not None and self.config.fake_sample_seconds is not None:
            made[settings.FAKE_SAMPLE_SECONDS] = str(self.config.fake_sample_seconds)
        return made | self.marks(order.allocation)

    def marks(self, allocation: str) -> dict[str, str]:
        return environment.marks(self.config.node, self.home, allocation)


class StartLock:
    """One `ray start` at a time on a host, whichever agent it is of: two at once race for socket names.

    The lock belongs to the started process (it inherits the descriptor), so it ends with that process even if the
    agent was killed meanwhile.
    """

    def __init__(self, path: Path | None = None) -> None:
        # Shared by all agents of this user on this host, so it cannot be in a state folder.
        self._path = path or Path("/tmp") / f"moorage-ray-{os.getuid()}.lock"  # noqa: S108

    def take(self) -> int | None:
        """A descriptor to pass to the process and to close here; None: another start is going on."""
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


class HomeLock:
    """One agent at a time uses a state folder. Ends with the process, however it ends."""

    def __init__(self, home: Path) -> None:
        self._file = (home / "agent.lock").open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise Invalid("state_dir", str(home), "another agent uses it; give each agent one of its own") from error

    def release(self) -> None:
        self._file.close()


def address_of(config: AgentConfig) -> str:
    """Where other nodes reach this one: loopback with a loopback broker, else the address of the way to it.

    Raises:
        Invalid: the broker's host does not resolve, or there is no way to it.
    """
    if config.address is not None:
        return config.address
    where = urlsplit(config.url)
    host = where.hostname or ""
    if host in _LOOPBACK:
        return "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: connecting a datagram socket only chooses the route.
            probe.connect((host, where.port or 80))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Invalid("address", None, f"give this node's address; there is no way to {host!r} ({error})") from error
