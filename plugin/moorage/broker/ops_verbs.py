"""`OpsApi`: what operators do and see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import insert

from moorage.api.auth import Principal, Role
from moorage.api.codec import dumps
from moorage.api.errors import NotFound
from moorage.api.values import EventKind, Fleet, GpuUse, NodeView, PolicyRevision, TokenView
from moorage.broker import reads, schema
from moorage.broker.draft import Draft
from moorage.broker.keeper import Keeper
from moorage.broker.store import LeaseRow, stamp
from moorage.broker.tokens import Tokens
from moorage.core.decision import Lose
from moorage.core.facts import describe
from moorage.core.fleet import Node
from moorage.core.health import condition, silent
from moorage.core.lease import Allocation, Lease, LeaseState
from moorage.core.order import ordered
from moorage.core.policy import Policy


class OpsVerbs:
    """Each takes who asks first."""

    def __init__(self, keeper: Keeper, tokens: Tokens) -> None:
        self._keeper, self._tokens = keeper, tokens

    def fleet(self, _who: Principal) -> Fleet:
        keeper = self._keeper
        with keeper.lock:
            memory = keeper.memory
            state, policy, version = memory.state, memory.policy, memory.version
            rows = {
                id_: LeaseRow(x, memory.entries[id_].memo, memory.entries[id_].revision)
                for id_, x in state.leases.items()
            }
            uses = _uses(state.leases)
            nodes = tuple(_view(n, uses.get(n.id, {}), state.heard, policy) for n in state.nodes.values())
            queue = keeper.views([rows[lease.id] for lease in ordered(state, policy)])
            busy = keeper.views([r for r in rows.values() if r.lease.state is not LeaseState.QUEUED])
        return Fleet(
            at=keeper.now(),
            nodes=tuple(sorted(nodes, key=lambda view: view.node.id)),
            queue=tuple(queue),
            leases=tuple(busy),
            frozen=policy.frozen,
            revision=version,
        )

    # --- nodes

    def cordon(self, who: Principal, node: str, on: bool, client_id: str) -> None:
        """Taking it back also takes back a drain."""

        def act(draft: Draft) -> None:
            found = _node(draft, node)
            draft.put_node(replace(found, cordoned=on, draining=found.draining and on))

        self._keeper.once_quiet(who, client_id, "cordon", act)

    def drain(self, who: Principal, node: str, client_id: str) -> None:
        def act(draft: Draft) -> None:
            draft.put_node(replace(_node(draft, node), cordoned=True, draining=True))

        self._keeper.once_quiet(who, client_id, "drain", act)

    def lose(self, who: Principal, node: str, client_id: str) -> None:
        def act(draft: Draft) -> None:
            if not _node(draft, node).lost:
                draft.apply(Lose(node=node, reason=f"{node} is lost: {who.name} said so"))

        self._keeper.once_quiet(who, client_id, "lose", act)

    # --- leases and policy

    def priority(self, who: Principal, lease: str, priority: int, client_id: str) -> None:
        def act(draft: Draft) -> None:
            found = draft.lease(lease)
            draft.put(replace(found, request=replace(found.request, priority=priority)))
            draft.tell(EventKind.NOTE, f"{who.name} set priority {priority}", lease)

        self._keeper.once_quiet(who, client_id, "priority", act)

    def freeze(self, who: Principal, on: bool, client_id: str) -> None:
        def act(draft: Draft) -> None:
            if draft.policy.frozen != on:
                what = "froze voluntary disruption" if on else "allowed voluntary disruption again"
                set_policy(draft, replace(draft.policy, frozen=on), f"{who.name} {what}")

        self._keeper.once_quiet(who, client_id, "freeze", act)

    def policy(self, _who: Principal) -> Policy:
        with self._keeper.lock:
            return self._keeper.memory.policy

    def apply_policy(self, who: Principal, policy: Policy, client_id: str) -> PolicyRevision:
        def act(draft: Draft) -> PolicyRevision:
            return set_policy(draft, policy, f"{who.name} applied a policy")

        return self._keeper.once_value(who, client_id, "apply_policy", PolicyRevision, act)

    def policy_history(self, _who: Principal) -> Sequence[PolicyRevision]:
        return reads.policies(self._keeper.store)

    # --- tokens

    def make_token(
        self, who: Principal, name: str, role: Role, team: str | None = None, node: str | None = None
    ) -> str:
        return self._tokens.make(who.name, name, role, team, node)

    def tokens(self, _who: Principal) -> Sequence[TokenView]:
        return self._tokens.views()

    def revoke_token(self, who: Principal, token_id: str) -> None:
        self._tokens.revoke(who.name, token_id)


def set_policy(draft: Draft, policy: Policy, sentence: str) -> PolicyRevision:
    """Append a revision, and describe every node anew: prices, GPU pools and domains are policy."""
    memory = draft.memory
    revision = memory.policy_revision + 1
    row = {"revision": revision, "at": stamp(draft.now), "who": draft.who, "body": dumps(policy).decode()}
    draft.statements.append(insert(schema.policy).values(**row))
    draft.policy, draft.policy_revision = policy, revision
    fresh = (describe(node, policy) for node in draft.state.nodes.values())
    draft.state = draft.state.with_nodes(*(n for n in fresh if n != draft.state.nodes[n.id]))
    draft.tell(EventKind.POLICY, f"{sentence}: revision {revision}")
    return PolicyRevision(revision=revision, at=draft.now, who=draft.who)


def _node(draft: Draft, node: str) -> Node:
    found = draft.state.nodes.get(node)
    if found is None:
        raise NotFound(f"there is no node {node}")
    return found


def _uses(leases: Mapping[str, Lease]) -> dict[str, dict[int, tuple[Lease, Allocation]]]:
    found: dict[str, dict[int, tuple[Lease, Allocation]]] = {}
    for lease in leases.values():
        for a in lease.live:
            for gpu in a.gpus:
                found.setdefault(a.node, {})[gpu] = (lease, a)
    return found


def _view(node: Node, uses: Mapping[int, tuple[Lease, Allocation]], heard: float, policy: Policy) -> NodeView:
    return NodeView(
        node=node,
        gpus=tuple(_use(gpu.index, uses.get(gpu.index)) for gpu in node.gpus),
        condition=condition(node, heard, policy),
        silent_s=silent(node, heard),
    )


def _use(index: int, use: tuple[Lease, Allocation] | None) -> GpuUse:
    if use is None:
        return GpuUse(index=index)
    lease, allocation = use
    return GpuUse(index=index, lease=lease.id, allocation=allocation.id, team=lease.team)
