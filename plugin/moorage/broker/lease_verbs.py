"""`LeaseApi`: what owners ask. Who may ask is decided before, in `authorize`."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from sqlalchemy.exc import IntegrityError

from moorage.api.auth import Principal, Role
from moorage.api.errors import Conflict, Denied, Invalid, NotFound
from moorage.api.ids import new_id
from moorage.api.values import Event, EventKind, Explanation, Labels, LeaseView, LogChunk, Segment, Submission
from moorage.broker import reads, schema
from moorage.broker.draft import Draft
from moorage.broker.keeper import Keeper
from moorage.broker.store import owner_key, stamp
from moorage.core.admit import admit, possible
from moorage.core.decision import Drop, Stop
from moorage.core.job import Job, JobKind
from moorage.core.lease import Lease, LeaseState, Outcome
from moorage.core.request import Request
from moorage.core.what_if import what_if

CODE_LIMIT = 32 << 20
LABELS_LIMIT = 32
LABEL_LIMIT = 1024
NOTES_LIMIT = 64
NOTE_LIMIT = 4096
EVENTS_LIMIT = 5000
FIND_LIMIT = 1000
DEFAULT_TEAM = "default"


class LeaseVerbs:
    """Each takes who asks first; leases are whole ids of leases that the caller may touch."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    # --- code

    def put_code(self, _who: Principal, code: bytes) -> str:
        if len(code) > CODE_LIMIT:
            raise Invalid("code", f"{len(code)} bytes", f"ship at most {CODE_LIMIT} bytes; put data elsewhere")
        if not zipfile.is_zipfile(io.BytesIO(code)):
            raise Invalid("code", f"{len(code)} bytes", "send a zip")
        digest = hashlib.sha256(code).hexdigest()
        keeper = self._keeper
        with keeper.lock:
            if not reads.has_code(keeper.store, digest):
                row = {"digest": digest, "at": stamp(keeper.now()), "bytes": code}
                try:
                    with keeper.store.begin() as connection:
                        connection.execute(schema.code.insert().values(**row))
                except IntegrityError as error:
                    raise Conflict(f"code {digest} is being stored by another call: try again") from error
        return digest

    def get_code(self, _who: Principal, digest: str) -> bytes:
        found = reads.code(self._keeper.store, digest)
        if found is None:
            raise NotFound(f"there is no code {digest}")
        return found

    # --- from submit to the end

    def submit(self, who: Principal, submission: Submission) -> LeaseView:
        team = _team(who, submission)
        _check_labels("owner", submission.owner, LABELS_LIMIT, LABEL_LIMIT)
        if not submission.owner:
            raise Invalid("owner", {}, "name the owner with at least one label, for example {'name': 'my-run'}")

        def act(draft: Draft) -> str:
            known = draft.memory.owners.get(owner_key(submission.owner))
            if known is not None:
                return _same_team(draft.lease(known), team).id
            lease = self._new(draft, submission, team)
            draft.put(lease)
            return lease.id

        return self._keeper.once(who, submission.client_id, "submit", act)

    def _new(self, draft: Draft, submission: Submission, team: str) -> Lease:
        job = submission.job
        admit(submission.request, job, draft.state, draft.policy, draft.now)
        if job is not None and job.code is not None and not reads.has_code(self._keeper.store, job.code):
            raise Invalid("job.code", job.code, "store the zip with put_code first")
        if submission.resume_from is not None:
            self._check_resume(submission.resume_from, team)
        return Lease(
            id=new_id(),
            owner=dict(submission.owner),
            generation=1 + reads.generations(self._keeper.store, owner_key(submission.owner)),
            team=team,
            request=submission.request,
            job=job,
            submitted_at=draft.now,
            owner_heard=draft.state.heard,
            resume_from=submission.resume_from,
        )

    def _check_resume(self, lease: str, team: str) -> None:
        row = reads.lease(self._keeper.store, lease)
        if row is None or row.lease.team != team:
            raise Invalid("resume_from", lease, f"name an ended lease of team {team} by its whole id")
        if row.lease.state is not LeaseState.ENDED:
            raise Conflict(f"resume_from: lease {lease} has not ended")

    def run(self, who: Principal, lease: str, job: Job, client_id: str) -> LeaseView:
        def act(draft: Draft) -> str:
            found = draft.lease(lease)
            if found.job is not None:
                raise Conflict(f"lease {lease} has a job already: wait for it to end")
            if not found.state.active:
                raise Conflict(f"lease {lease} is {found.state}: a job can be given to a lease that has its GPUs")
            draft.put(replace(found, job=job))
            return lease

        return self._keeper.once(who, client_id, "run", act)

    def resize(self, who: Principal, lease: str, workers: tuple[int, int], client_id: str) -> LeaseView:
        def act(draft: Draft) -> str:
            found = draft.lease(lease)
            if found.state is LeaseState.STOPPING:
                raise Conflict(f"lease {lease} is stopping")
            request = replace(found.request, workers=(workers[0], workers[1]))
            # A deadline steers and never stops: past it, the size may still be changed.
            admit(replace(request, deadline=None), found.job, draft.state, draft.policy, draft.now)
            draft.put(replace(found, request=request))
            draft.tell(EventKind.NOTE, f"{who.name} changed workers to {workers[0]}..{workers[1]}", lease)
            return lease

        return self._keeper.once(who, client_id, "resize", act)

    def release(self, who: Principal, lease: str, reason: str, client_id: str, force: bool = False) -> LeaseView:
        def act(draft: Draft) -> str:
            found = draft.state.leases.get(lease)
            if found is not None:
                stop(draft, found, reason or f"released by {who.name}", force=force)
            return lease

        return self._keeper.once(who, client_id, "release", act)

    def give_back(self, who: Principal, lease: str, allocations: Sequence[str], client_id: str) -> LeaseView:
        def act(draft: Draft) -> str:
            found = draft.lease(lease)
            wanted = set(allocations)
            if unknown := wanted - {a.id for a in found.allocations}:
                raise Invalid("allocations", sorted(unknown), f"name allocations of lease {lease}")
            for a in found.live:
                if a.id in wanted:
                    why = f"given back by {who.name}"
                    draft.apply(Drop(lease=lease, allocation=a.id, reason=why, by=draft.now))
            raylets = found.job is not None and found.job.kind is JobKind.RAYLET
            # Raylets that are all given back have done their work: `core` ends the lease when they are gone.
            if not raylets and found.live and wanted.issuperset(a.id for a in found.live):
                stop(draft, draft.lease(lease), "its last allocation was given back", force=True)
            return lease

        return self._keeper.once(who, client_id, "give_back", act)

    # --- being there

    def watch(self, who: Principal, lease: str, watcher: str, since: int = 0, timeout: float = 0) -> LeaseView:
        keeper = self._keeper
        with keeper.lock:
            if lease not in keeper.memory.entries:
                return keeper.view(lease)
            with keeper.change(who.name, lazy=True) as draft:
                draft.put(replace(draft.lease(lease), owner_heard=draft.state.heard))
                memo = draft.memo(lease)
                if memo.release_at is not None and memo.gone_watcher != watcher:
                    draft.remember(lease, release_at=None, gone_watcher="")

        def news() -> LeaseView | None:
            row = keeper.row(lease)
            over = row.revision > since or row.lease.state is LeaseState.ENDED
            return keeper.view(lease) if over else None

        return keeper.wait(news, timeout) or keeper.view(lease)

    def unwatch(self, who: Principal, lease: str, watcher: str) -> None:
        with self._keeper.change(who.name) as draft:
            if lease in draft.memory.entries and draft.memo(lease).release_at is None:
                # It also wakes every other watcher, whose next call says that it is there.
                at = draft.state.heard + draft.policy.unwatch_grace_s
                draft.remember(lease, release_at=at, gone_watcher=watcher)

    def note(self, who: Principal, lease: str, notes: Labels) -> None:
        _check_labels("notes", notes, NOTES_LIMIT, NOTE_LIMIT)
        keeper = self._keeper
        with keeper.change(who.name) as draft:
            live = draft.state.leases.get(lease)
            row = keeper.row(lease)
            old = live or row.lease
            merged = {**old.notes, **notes}
            if merged == dict(old.notes):
                return
            _check_labels("notes", merged, NOTES_LIMIT, NOTE_LIMIT)
            changed = replace(old, notes=merged)
            if live is not None:
                draft.put(changed)
            else:
                draft.statements.append(reads.update_body(changed, row.revision + 1))
            told = ", ".join(f"{name}={value}" for name, value in notes.items())
            draft.tell(EventKind.NOTE, f"{who.name} noted {told}"[:1000], lease)

    # --- reading

    def get(self, _who: Principal, lease: str) -> LeaseView:
        return self._keeper.view(lease)

    def find(self, who: Principal, owner: Labels, *, live: bool = False, limit: int = 100) -> Sequence[LeaseView]:
        team = who.team if who.role is Role.SUBMITTER else None
        rows = reads.found(self._keeper.store, owner, team, live, max(1, min(limit, FIND_LIMIT)))
        return self._keeper.views([self._keeper.row(row.lease.id) for row in rows])

    def logs(self, _who: Principal, lease: str, offset: int = 0, timeout: float = 0) -> LogChunk:
        keeper = self._keeper

        def news() -> LogChunk | None:
            over = keeper.row(lease).lease.state is LeaseState.ENDED
            text, after, whole = keeper.logs.read(lease, offset)
            return LogChunk(text=text, next=after, end=over and whole) if text or over else None

        return keeper.wait(news, timeout) or LogChunk(text="", next=offset, end=False)

    def events(
        self, who: Principal, since: int = 0, lease: str | None = None, limit: int = 500, timeout: float = 0
    ) -> Sequence[Event]:
        keeper = self._keeper
        team = who.team if who.role is Role.SUBMITTER else None
        most = max(1, min(limit, EVENTS_LIMIT))

        def news() -> Sequence[Event] | None:
            return reads.events(keeper.store, since, lease, team, most) or None

        return keeper.wait(news, timeout) or ()

    def ledger(self, _who: Principal, lease: str) -> Sequence[Segment]:
        return reads.segments(self._keeper.store, [lease])

    def explain(self, _who: Principal, lease: str) -> Explanation:
        keeper = self._keeper
        row = keeper.row(lease)
        found = row.lease
        if found.state is LeaseState.QUEUED:
            asked = self._now(found.request)
            return replace(asked, sentence=found.reason or asked.sentence)
        if found.state is LeaseState.ENDED:
            return Explanation(fits=False, ever=True, sentence=f"{found.outcome}: {found.reason}")
        return Explanation(
            fits=True, ever=True, sentence=_where(found), placement=_placement(found), level=row.memo.level
        )

    def what_if(self, _who: Principal, request: Request) -> Explanation:
        with self._keeper.lock:
            policy, now = self._keeper.memory.policy, self._keeper.now()
        possible(request, policy, now)
        return self._now(request)

    def _now(self, request: Request) -> Explanation:
        """Also of a request that waits already and whose deadline has passed meanwhile."""
        keeper = self._keeper
        with keeper.lock:
            state, policy, now = keeper.memory.state, keeper.memory.policy, keeper.now()
        told = what_if(state, policy, request, now)
        return Explanation(
            fits=told.fits, ever=told.ever, sentence=told.sentence, placement=told.placement, level=told.level
        )


def stop(draft: Draft, lease: Lease, reason: str, *, force: bool = False) -> None:
    """Stop a live lease; an attempt that runs gets the policy's grace for a checkpoint, unless `force`."""
    grace = not force and lease.state is LeaseState.RUNNING and lease.job is not None and lease.job.entrypoint
    by = draft.now + timedelta(seconds=draft.policy.stop_grace_s if grace else 0)
    draft.apply(Stop(lease=lease.id, outcome=Outcome.STOPPED, reason=reason, by=by))


def _team(who: Principal, submission: Submission) -> str:
    if who.role is Role.OPERATOR:
        return submission.team or DEFAULT_TEAM
    team = who.team or DEFAULT_TEAM
    if submission.team not in (None, team):
        raise Denied(f"{who.name} submits for team {team}, not for {submission.team}")
    return team


def _same_team(lease: Lease, team: str) -> Lease:
    if lease.team != team:
        raise Conflict(f"these owner labels are in use by a lease of team {lease.team}: add a label of your own")
    return lease


def _check_labels(field: str, labels: Labels, most: int, longest: int) -> None:
    if len(labels) > most:
        raise Invalid(field, f"{len(labels)} labels", f"give at most {most}")
    for name, value in labels.items():
        if not 0 < len(name) <= 200 or len(value) > longest:
            raise Invalid(
                f"{field}.{name[:200]}", value[:80], f"names have 1 to 200 characters, values up to {longest}"
            )


def _where(lease: Lease) -> str:
    nodes = ", ".join(_placement(lease)) or "no node"
    if lease.state is LeaseState.STOPPING:
        return f"stopping on {nodes}: {lease.reason}"
    workers = f"{lease.workers} worker{'' if lease.workers == 1 else 's'}"
    why = lease.target.reason or lease.reason
    return f"attempt {lease.epoch} is {lease.state} with {workers} on {nodes}" + (f": {why}" if why else "")


def _placement(lease: Lease) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for a in lease.live:
        if a.gpus:
            found[a.node] = tuple(sorted({*found.get(a.node, ()), *a.gpus}))
    return found
