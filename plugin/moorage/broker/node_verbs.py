"""`NodeApi` and `TrainApi`: what agents and attempts say: heartbeats, stored at once only if they change more."""

from __future__ import annotations

from dataclasses import replace

from moorage.api.auth import Principal
from moorage.api.errors import Conflict
from moorage.api.values import NodeReport, Orders, Renewal
from moorage.broker import reads, renewals, reports
from moorage.broker.keeper import Keeper
from moorage.broker.memo import Memo
from moorage.broker.tokens import Tokens
from moorage.core.job import Progress
from moorage.core.lease import AllocationRole, Lease

#: Most metrics of one heartbeat, and most characters of its message.
METRICS_LIMIT = 64
MESSAGE_LIMIT = 1000
_LOGGERS = (AllocationRole.PROCESS, AllocationRole.HEAD)


class TrainVerbs:
    """Heartbeats of attempts."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def renew(self, who: Principal, lease: str, epoch: int, progress: Progress) -> Renewal:
        keeper = self._keeper
        with keeper.lock:
            found, memo = self._lease(lease)
            if renewals.preempted(found, epoch, memo, keeper.now()):
                return renewals.answer(found)
            renewals.check_epoch(found, epoch)
            with keeper.change(who.name, lazy=True) as draft:
                stirs = renewals.take(draft, found, _bounded(progress))
            if stirs:
                keeper.stir()
            return renewals.answer(keeper.memory.state.leases[lease])

    def _lease(self, lease: str) -> tuple[Lease, Memo]:
        found = self._keeper.memory.state.leases.get(lease)
        if found is None:
            raise Conflict(f"lease {lease} has ended: stop at once")
        return found, self._keeper.memory.entries[lease].memo


def _bounded(progress: Progress) -> Progress:
    metrics = dict(list(progress.metrics.items())[:METRICS_LIMIT])
    return replace(progress, metrics=metrics, message=progress.message[:MESSAGE_LIMIT])


class NodeVerbs:
    """Reports and orders."""

    def __init__(self, keeper: Keeper, tokens: Tokens) -> None:
        self._keeper, self._tokens = keeper, tokens

    def report(self, who: Principal, report: NodeReport) -> Orders:
        keeper = self._keeper
        with keeper.lock:
            if keeper.refusal is None and keeper.memory.says_the_same(report):
                keeper.memory.beats.add(report.node)
                return self._give(report.node)
            with keeper.change(who.name, lazy=True) as draft:
                bound = self._tokens.bind(draft, who, report.node)
                reported = reports.take(draft, report)
            if bound:
                self._tokens.reload()
            revision = keeper.memory.orders_of(report.node).revision
            keeper.memory.reported[report.node] = replace(reported, revision=revision)
            return self._give(report.node)

    def orders(self, _who: Principal, node: str, since: int, timeout: float) -> Orders:
        keeper = self._keeper

        def news() -> Orders | None:
            with keeper.lock:
                orders = keeper.memory.orders.get(node)
                # A revision that was never given out (a restored database) is news too.
                return self._give(node) if orders is not None and orders.revision != since else None

        found = keeper.wait(news, timeout)
        if found is not None:
            return found
        with keeper.lock:
            return self._give(node)

    def _give(self, node: str) -> Orders:
        memory = self._keeper.memory
        orders = memory.orders_of(node)
        known = memory.reported.get(node)
        if known is not None and known.given != orders.revision:
            memory.reported[node] = replace(known, given=orders.revision)
        return orders

    def put_logs(self, _who: Principal, node: str, lease: str, epoch: int, offset: int, text: bytes) -> int:
        keeper = self._keeper
        if not reads.roles_on(keeper.store, lease, epoch, node) & set(_LOGGERS):
            raise Conflict(f"attempt {epoch} of lease {lease} has no process on {node} whose log is kept")
        after = keeper.logs.put(lease, epoch, offset, text)
        keeper.publish(frozenset({f"log:{lease}"}))
        return after
