"""Who speaks, and what each role may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    #: Sees everything, changes nothing.
    VIEWER = "viewer"
    #: Submits and releases leases of its own team.
    SUBMITTER = "submitter"
    #: Everything, and makes tokens.
    OPERATOR = "operator"
    #: Reports its own node.
    AGENT = "agent"
    #: Renews its own lease and epoch.
    TRAINER = "trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated caller. `name` goes to the audit log."""

    name: str
    role: Role
    #: Team of a submitter.
    team: str | None = None
    #: Node of an agent. None: it may join one node, which binds the token.
    node: str | None = None
    #: Lease and epoch of a trainer.
    lease: str | None = None
    epoch: int | None = None
