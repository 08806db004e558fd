"""The four faces of the broker. In process and over HTTP alike; every call is safe to repeat.

All may raise `Invalid`, `NotFound`, `Conflict`, `Denied`, and over HTTP `Unavailable`. A `timeout` in seconds bounds a
long poll; 0 answers at once. Objects are bound to a `Principal`: over HTTP by their token, in process by
``broker.acting(principal)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from moorage.api.auth import Role
from moorage.api.values import (
    Event,
    Explanation,
    Fleet,
    Labels,
    LeaseView,
    LogChunk,
    NodeReport,
    Orders,
    PolicyRevision,
    Renewal,
    Segment,
    Submission,
    TokenView,
)
from moorage.core.job import Job, Progress
from moorage.core.policy import Policy
from moorage.core.request import Request


class LeaseApi(Protocol):
    """For owners: submitters of the lease's team, and operators. Viewers may read."""

    def put_code(self, code: bytes) -> str:
        """Store a zip (at most 32 MiB) and return its SHA-256; the same bytes are stored once."""
        ...

    def get_code(self, digest: str) -> bytes:
        """The zip. Agents may read it too."""
        ...

    def submit(self, submission: Submission) -> LeaseView:
        """Queue a request, or find the owner's live lease. `Invalid` if the fleet could never hold it."""
        ...

    def run(self, lease: str, job: Job, client_id: str) -> LeaseView:
        """Give a running lease without a job its next job."""
        ...

    def get(self, lease: str) -> LeaseView:
        """The lease by id, or by a prefix that only one lease has."""
        ...

    def find(self, owner: Labels, *, live: bool = False, limit: int = 100) -> Sequence[LeaseView]:
        """Leases whose owner labels contain `owner` (empty: all), newest first."""
        ...

    def watch(self, lease: str, watcher: str, since: int = 0, timeout: float = 0) -> LeaseView:
        """Say that the owner is there, and return when the revision exceeds `since`, or at `timeout`."""
        ...

    def unwatch(self, lease: str, watcher: str) -> None:
        """This watcher ends on purpose: the lease is released unless another one is heard within 5 s."""
        ...

    def resize(self, lease: str, workers: tuple[int, int], client_id: str) -> LeaseView:
        """Change the request's bounds. A running gang follows at once, as far as GPUs are free."""
        ...

    def release(self, lease: str, reason: str, client_id: str, force: bool = False) -> LeaseView:
        """Stop it: a checkpoint first, unless `force`. Ended leases stay as they are."""
        ...

    def give_back(self, lease: str, allocations: Sequence[str], client_id: str) -> LeaseView:
        """Free these allocations now (an idle raylet); a lease that has none left ends."""
        ...

    def note(self, lease: str, notes: Labels) -> None:
        """Hang facts on a lease, for example its MLflow run."""
        ...

    def logs(self, lease: str, offset: int = 0, timeout: float = 0) -> LogChunk:
        """The job's log over all attempts, from byte `offset`."""
        ...

    def events(self, since: int = 0, lease: str | None = None, limit: int = 500, timeout: float = 0) -> Sequence[Event]:
        """Journal rows with seq > since, oldest first."""
        ...

    def ledger(self, lease: str) -> Sequence[Segment]:
        """Every ledger segment of a lease, oldest first; open ones have no end."""
        ...

    def explain(self, lease: str) -> Explanation:
        """Why the lease waits or where it is, in one sentence a person can act on."""
        ...

    def what_if(self, request: Request) -> Explanation:
        """Where this request would go now. Changes nothing. `Invalid` for a level that is unknown or a time past."""
        ...


class TrainApi(Protocol):
    """For the attempt: its token can do only this, for its lease and epoch."""

    def renew(self, lease: str, epoch: int, progress: Progress) -> Renewal:
        """Heartbeat. `Conflict` if the epoch is stale: stop at once, another attempt owns the lease."""
        ...


class NodeApi(Protocol):
    """For agents; each token can report only its node."""

    def report(self, report: NodeReport) -> Orders:
        """What the node has; answered with what should be."""
        ...

    def orders(self, node: str, since: int, timeout: float) -> Orders:
        """Long poll: returns when the orders' revision exceeds `since`, or at `timeout`."""
        ...

    def put_logs(self, node: str, lease: str, epoch: int, offset: int, text: bytes) -> int:
        """Append log bytes of an attempt at `offset` (repeats are ignored); returns the next offset."""
        ...


class OpsApi(Protocol):
    """For operators; viewers may read."""

    def fleet(self) -> Fleet: ...

    def cordon(self, node: str, on: bool, client_id: str) -> None:
        """No new grants on the node (or again)."""
        ...

    def drain(self, node: str, client_id: str) -> None:
        """Cordon, and move the leases away at their next checkpoint."""
        ...

    def lose(self, node: str, client_id: str) -> None:
        """An operator's word that the node is gone: frees what it held."""
        ...

    def priority(self, lease: str, priority: int, client_id: str) -> None: ...

    def freeze(self, on: bool, client_id: str) -> None:
        """Stop every voluntary disruption (or go on)."""
        ...

    def policy(self) -> Policy: ...

    def apply_policy(self, policy: Policy, client_id: str) -> PolicyRevision: ...

    def policy_history(self) -> Sequence[PolicyRevision]: ...

    def make_token(self, name: str, role: Role, team: str | None = None, node: str | None = None) -> str:
        """Returns the secret, this once."""
        ...

    def tokens(self) -> Sequence[TokenView]: ...

    def revoke_token(self, token_id: str) -> None: ...


class Api(LeaseApi, TrainApi, NodeApi, OpsApi, Protocol):
    """All four, bound to one principal."""


class Changes(Protocol):
    """How a server learns without polling that something it waits for changed.

    Topics: ``lease:<id>``, ``node:<id>``, ``events``, ``fleet``, ``log:<lease>``.
    """

    def listen(self, callback: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call `callback` with changed topics, from the broker's threads, after commit; returns how to stop it."""
        ...
