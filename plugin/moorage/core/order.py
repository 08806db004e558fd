"""Who goes first: priority, then the team that holds least for its weight, then who waited longest."""

from __future__ import annotations

from collections.abc import Mapping

from moorage.core.lease import Lease, LeaseState
from moorage.core.policy import Policy, Team
from moorage.core.state import State


def ordered(state: State, policy: Policy) -> tuple[Lease, ...]:
    """The queue in the order in which it is tried."""
    shares = held_by_team(state)
    queued = [lease for lease in state.leases.values() if lease.state is LeaseState.QUEUED]
    return tuple(sorted(queued, key=lambda lease: _key(lease, shares, policy)))


def _key(lease: Lease, shares: Mapping[str, int], policy: Policy) -> tuple[int, float, object, str]:
    share = shares.get(lease.team, 0) / max(team_of(lease.team, policy).weight, 1e-9)
    return -lease.request.priority, share, lease.submitted_at, lease.id


def held_by_team(state: State) -> dict[str, int]:
    """GPUs that each team holds now: everything live, what drains included."""
    held: dict[str, int] = {}
    for lease in state.leases.values():
        held[lease.team] = held.get(lease.team, 0) + sum(len(a.gpus) for a in lease.live)
    return held


def team_of(name: str, policy: Policy) -> Team:
    """The team as the policy has it; one that it does not name has no quota and weight 1."""
    return next((team for team in policy.teams if team.name == name), Team(name=name))


def quota_left(lease: Lease, state: State, policy: Policy) -> int | None:
    """GPUs that the lease's team may still take. None: no limit."""
    quota = team_of(lease.team, policy).quota
    return None if quota is None else quota - held_by_team(state).get(lease.team, 0)
