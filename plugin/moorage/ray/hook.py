"""What the autoscaler hook says to the broker: one `step` for each look at Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from moorage.api.errors import Conflict, MoorageError, NotFound
from moorage.api.protocols import LeaseApi
from moorage.core.invalid import Invalid
from moorage.core.lease import AllocationState, Lease, LeaseState, Outcome
from moorage.ray.demand import CLASS, CLUSTER, HEAD, Cluster, Demand, submission
from moorage.ray.internals import RayGone, Snapshot
from moorage.ray.plan import Plan, Want, named, plan

log = logging.getLogger(__name__)

#: Most leases of one head.
_MOST = 1000
#: Most `watch` calls in one step.
_WATCHES = 20


UNBOUND = (
    "Moorage keeps demand without a gang key together only as well as it can, because Ray may put other work on its "
    "nodes. Bind a placement group to its GPUs with moorage.ray.placement_group(...)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the hook, in seconds where not said otherwise."""

    #: Most leases of the shared class at once.
    max_shared: int = 16
    #: Demand that is gone for so long is withdrawn: Ray does not show a group while it tries to place it.
    patience_s: float = 3.0
    #: A raylet so young may not be counted in Ray's demand yet.
    settle_s: float = 3.0
    #: A complete gang that Ray does not place within this loses its protection from the idle timeout.
    protect_s: float = 120.0
    #: A gang that can never fit is offered again after this: the fleet may have grown.
    deny_s: float = 60.0
    #: How often the broker hears that a lease's owner is there.
    watch_every_s: float = 60.0
    #: Waits between tries: after a lease that ended without use, and after a broker that did not answer.
    again_first_s: float = 2.0
    again_max_s: float = 300.0
    broker_max_s: float = 15.0


#: What suits a cluster of some hundred nodes.
LIMITS = Limits()


class Hook:
    """Keeps the broker's leases as Ray's demand wants them.

    Args:
        given: allocations whose raylets accepted an idle drain; another thread adds to it.
        say: prints a line at the drivers of the cluster.
    """

    def __init__(
        self,
        api: LeaseApi,
        cluster: Cluster,
        limits: Limits,
        given: set[str],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._cluster, self._limits, self._given, self._say = api, cluster, limits, given, say
        self._clock = clock
        self._returned: set[str] = set()
        self._leases: tuple[Lease, ...] = ()
        self._sentences: dict[str, str] = {}
        self._ages = _Ages(clock)
        #: Demand -> generation of its last lease, and when to ask for the next.
        self._again: dict[str, tuple[int, float]] = {}
        #: Denied demand -> when to ask again.
        self._reoffer: dict[str, float] = {}
        self._said: set[str] = set()
        self._watched: dict[str, float] = {}
        self._trouble: str | None = None
        self._tries = 0
        self._not_before = 0.0
        #: Allocation -> whether its agent reported it running. None: the broker was not heard yet.
        self.instances: Mapping[str, bool] | None = None
        #: Allocations that wait for the rest of their gang, or for Ray to place it.
        self.protected: frozenset[str] = frozenset()

    @property
    def denied(self) -> frozenset[str]:
        """Demands that can never be served."""
        return frozenset(self._sentences)

    def step(self, now: Snapshot) -> None:
        """Say to the broker what changed in Ray. If it does not answer, everything stays as it was last seen."""
        if self._clock() < self._not_before:
            return
        try:
            self._step(now)
        except (MoorageError, Invalid, OSError) as error:
            self._failed(error)
        else:
            self._worked()

    def _step(self, now: Snapshot) -> None:
        self._find()
        self._give_back()
        young = self._ages.young("node", (n.instance for n in now.nodes), self._limits.settle_s)
        nodes = [replace(n, settled=n.instance not in young) for n in now.nodes]
        what = plan(now.demand, self._cluster, self._leases, nodes, max_shared=self._limits.max_shared)
        self._forget(now.demand, what)
        for demand, sentence in what.impossible.items():
            self._deny(demand, sentence)
        for want in what.submit:
            self._submit(want)
        self._withdraw(what)
        self._watch()
        self._protect(what, {n.instance for n in now.nodes})

    # --- what the broker has

    def _find(self) -> None:
        owner = {HEAD: self._cluster.owner[HEAD]}
        views = self._api.find(owner, live=True, limit=_MOST)
        live = [view.lease for view in views if view.lease.state is not LeaseState.ENDED]
        mine = [lease for lease in live if lease.owner.get(CLUSTER) == self._cluster.session]
        for lease in live:
            if lease not in mine and lease.state is not LeaseState.STOPPING:
                self._release(lease, "its Ray head started again")
        self._tell(mine)
        self._leases = tuple(sorted(mine, key=lambda lease: lease.id))
        self.instances = instances(self._leases)
        self._returned &= set(self.instances)

    def _tell(self, mine: Sequence[Lease]) -> None:
        before = {lease.id: lease.state for lease in self._leases}
        for lease in mine:
            if before.get(lease.id) is not lease.state:
                log.info("lease %s (%s) is %s: %s", lease.id, _whose(lease), lease.state, lease.reason or "-")
        for gone in set(before) - {lease.id for lease in mine}:
            log.info("lease %s has ended", gone)

    # --- submit

    def _submit(self, want: Want) -> None:
        now = self._clock()
        if now < self._reoffer.get(want.demand, 0.0) or now < self._again.get(want.demand, (0, 0.0))[1]:
            return
        earlier = self._api.find(want.owner, limit=1)
        last = earlier[0].lease if earlier else None
        if last is not None and self._cools(want, last):
            return
        wish = submission(self._cluster, want.owner, want.shape, 1 + (last.generation if last else 0))
        try:
            lease = self._api.submit(wish).lease
        except Invalid as error:
            self._reoffer[want.demand] = self._clock() + self._limits.deny_s
            self._deny(want.demand, str(error))
            return
        self._sentences.pop(want.demand, None)
        log.info("asked for %s: lease %s", named(want.demand), lease.id)
        self._leases = (*self._leases, lease)
        self.instances = instances(self._leases)
        if want.unbound:
            self._say_once(UNBOUND)

    def _cools(self, want: Want, last: Lease) -> bool:
        """A lease that ended while it was still wanted is not asked for again at once."""
        if self._again.get(want.demand, (0, 0.0))[0] >= last.generation:
            return False
        wait = self._wait(last)
        self._again[want.demand] = (last.generation, self._clock() + wait)
        if wait:
            name = named(want.demand)
            log.info("lease %s of %s ended (%s); the next one in %.0f s", last.id, name, last.reason, wait)
        return wait > 0

    def _wait(self, last: Lease) -> float:
        if CLASS in last.owner:
            # A slot is used again and again; only a failure says something about the next lease.
            return 0.0 if last.outcome is Outcome.SUCCEEDED else self._limits.again_first_s * 10
        return min(self._limits.again_first_s * 2.0 ** min(last.generation - 1, 20), self._limits.again_max_s)

    def _deny(self, demand: str, sentence: str) -> None:
        if self._sentences.get(demand) != sentence:
            self._sentences[demand] = sentence
            log.warning("%s can never be served: %s", named(demand), sentence)
            self._say_now(f"Moorage cannot serve {named(demand)}: {sentence}")

    def _forget(self, demand: Demand, what: Plan) -> None:
        """Words about demand that is gone: the same demand may come again, and is then judged anew."""
        here = {gang.id for gang in demand.gangs} | {want.demand for want in what.submit} | set(what.impossible)
        gone = self._ages.old("demand", (set(self._sentences) | set(self._again)) - here, self._limits.patience_s)
        for demand_id in gone:
            self._sentences.pop(demand_id, None)
            self._again.pop(demand_id, None)
            self._reoffer.pop(demand_id, None)

    # --- let go

    def _withdraw(self, what: Plan) -> None:
        old = self._ages.old("unwanted", what.unwanted, self._limits.patience_s)
        for lease in self._leases:
            if lease.id in old:
                self._release(lease, "Ray does not ask for it any more")

    def _release(self, lease: Lease, why: str) -> None:
        log.info("releasing lease %s (%s): %s", lease.id, _whose(lease), why)
        self._api.release(lease.id, why, f"{lease.id}/release", force=True)

    def _give_back(self) -> None:
        # Ray says it twice: when a raylet accepts its drain, and when it is gone.
        self._given &= set(self.instances or ()) - self._returned
        for allocation in sorted(self._given):
            lease = allocation.rpartition(".")[0]
            try:
                self._api.give_back(lease, [allocation], f"{allocation}/give-back")
            except (NotFound, Conflict, Invalid) as error:
                log.info("allocation %s is gone already: %s", allocation, error)
            else:
                log.info("gave back the idle allocation %s", allocation)
            self._returned.add(allocation)
        self._given -= self._returned

    # --- stay

    def _watch(self) -> None:
        """Say for each lease that its owner is there."""
        now = self._clock()
        due = [x.id for x in self._leases if now - self._watched.get(x.id, -1e9) > self._limits.watch_every_s]
        for lease in due[:_WATCHES]:
            self._api.watch(lease, f"ray-autoscaler {self._cluster.session}")
            self._watched[lease] = now
        self._watched = {x.id: self._watched[x.id] for x in self._leases if x.id in self._watched}

    def _protect(self, what: Plan, nodes: set[str]) -> None:
        serving = [lease for lease in self._leases if lease.id in what.serving]
        complete = [x.id for x in serving if len(x.live) and all(a.id in nodes for a in x.live)]
        stuck = self._ages.old("complete", complete, self._limits.protect_s)
        for lease in sorted(stuck):
            self._say_once(
                f"Moorage: all raylets of lease {lease} are up, but Ray does not place {what.serving[lease]}."
            )
        self.protected = frozenset(a.id for lease in serving if lease.id not in stuck for a in lease.live)

    # --- words and trouble

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)
            self._say_now(text)

    def _say_now(self, text: str) -> None:
        try:
            self._say(text)
        except RayGone as error:
            log.warning("could not tell the drivers: %s", error)

    def _failed(self, error: Exception) -> None:
        wait = min(2.0**self._tries, self._limits.broker_max_s)
        self._tries += 1
        self._not_before = self._clock() + wait
        if self._trouble != type(error).__name__:
            self._trouble = type(error).__name__
            log.warning("the broker does not serve us: %s; trying again", error)

    def _worked(self) -> None:
        if self._trouble is not None:
            log.info("the broker serves us again")
        self._trouble, self._tries = None, 0


class _Ages:
    """Since when things are as they are, by kind; what is not named any more is forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, dict[str, float]] = {}

    def old(self, kind: str, things: Iterable[str], seconds: float) -> frozenset[str]:
        """Those that are so for at least so long."""
        limit = self._clock() - seconds
        return frozenset(thing for thing, since in self._seen(kind, things).items() if since <= limit)

    def young(self, kind: str, things: Iterable[str], seconds: float) -> frozenset[str]:
        """Those that are so for less."""
        limit = self._clock() - seconds
        return frozenset(thing for thing, since in self._seen(kind, things).items() if since > limit)

    def _seen(self, kind: str, things: Iterable[str]) -> dict[str, float]:
        before = self._since.get(kind, {})
        now = self._clock()
        self._since[kind] = {thing: before.get(thing, now) for thing in things}
        return self._since[kind]


def instances(leases: Sequence[Lease]) -> dict[str, bool]:
    """Live allocations, and whether each is running."""
    return {a.id: a.state is not AllocationState.RESERVED for lease in leases for a in lease.live}


def release_all(api: LeaseApi, owner: Mapping[str, str], why: str) -> bool:
    """Release all live leases of an owner; whether the broker answered."""
    try:
        for view in api.find(owner, live=True, limit=_MOST):
            if view.lease.state is not LeaseState.STOPPING:
                api.release(view.lease.id, why, f"{view.lease.id}/release", force=True)
    except (MoorageError, OSError) as error:
        log.warning("could not release the leases of %s: %s", dict(owner), error)
        return False
    log.warning("released all leases of %s: %s", dict(owner), why)
    return True


def _whose(lease: Lease) -> str:
    return ", ".join(f"{key}={value}" for key, value in lease.owner.items() if key not in (HEAD, CLUSTER))
