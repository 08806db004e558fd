"""Tails the broker's journal and alone writes what Moorage logs to MLflow. See README.md for the drawing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing as closed_after
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from moorage.api.errors import Conflict, MoorageError, NotFound
from moorage.api.values import Event, EventKind, Labels, LeaseView, Segment
from moorage.mlflow.accounts import closing, cost_point, live_gpus
from moorage.mlflow.artifacts import attachments
from moorage.mlflow.opening import millis, opening, track
from moorage.mlflow.operations import Operation, Worth, worth
from moorage.mlflow.sender import Sender
from moorage.mlflow.spool import RunRow, Spool
from moorage.mlflow.timeline import cost_of, usd_by_epoch
from moorage.mlflow.tracked import Tracked
from moorage.mlflow.translate import allocated, told, translate

_log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_PAGE = 500
#: A run that the broker was not told of yet makes the reader come back this soon.
_HURRY_S, _POLL_S = 0.5, 2.0
#: An ended lease whose ledger has an open segment is looked at again for this long.
_LEDGER_PATIENCE_S = 120.0
#: Points that fill the time in which no recorder ran.
_MAX_BACKFILL = 500


class Source(Protocol):
    """The part of `LeaseApi` that the recorder uses, in process or over HTTP."""

    def get(self, lease: str) -> LeaseView: ...

    def note(self, lease: str, notes: Labels) -> None: ...

    def events(
        self, since: int = 0, lease: str | None = None, limit: int = 500, timeout: float = 0
    ) -> Sequence[Event]: ...

    def ledger(self, lease: str) -> Sequence[Segment]: ...


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Recorder:
    """One MLflow run per lease, one child per attempt.

    Args:
        api: the broker, as an operator or viewer who may note.
        tracking_uri: of the MLflow server.
        spool: file of this recorder alone; a restarted recorder goes on from it.
        fleet_url: where people see the lease: a link in the run.
        ui_url: where people see MLflow, if that is not `tracking_uri`.
        cost_every_s: seconds between two cost points of an active lease.
    """

    def __init__(
        self,
        api: Source,
        tracking_uri: str,
        *,
        experiment: str = "moorage",
        spool: Path,
        fleet_url: str | None = None,
        ui_url: str | None = None,
        cost_every_s: float = 8.0,
        flush_every_s: float = 5.0,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._api, self._uri, self._experiment = api, tracking_uri, experiment
        self._path, self._fleet_url, self._ui_url = spool, fleet_url, ui_url
        self._cost_every_s, self._flush_every_s, self._now = cost_every_s, flush_every_s, now
        self._tracked: dict[str, Tracked] = {}
        self._checked_journal = False

    def run(self, stop: threading.Event) -> None:
        """Record until `stop` is set.

        Raises:
            Conflict: another recorder has this spool, or the spool belongs to another broker's journal.
        """
        with closed_after(Spool(self._path)) as spool:
            self._tracked = spool.tracked()
            self._checked_journal = False
            sender = Sender(spool, self._uri, self._experiment, flush_every_s=self._flush_every_s)
            sender.start()
            try:
                self._follow(spool, sender, stop)
            finally:
                sender.stop(timeout=10.0)

    def _follow(self, spool: Spool, sender: Sender, stop: threading.Event) -> None:
        pause = 0.0
        while not stop.is_set():
            try:
                self._round(spool, sender)
            except Conflict:
                raise
            except MoorageError as error:
                if not pause:
                    _log.warning("the broker cannot be read (%s); next try in at most %d s", error, _LONGEST_PAUSE)
                pause = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
                stop.wait(pause)
                continue
            pause = 0.0

    def _round(self, spool: Spool, sender: Sender) -> None:
        if not self._checked_journal:
            self._check_journal(spool)
        caught_up = self._read(spool, sender)
        if caught_up:
            for seen in list(self._tracked.values()):
                self._account(spool, sender, seen)
        self._write_back(spool)

    def _check_journal(self, spool: Spool) -> None:
        """The row that was read last must still be the same one: else the broker has another database."""
        seq, at = spool.position()
        if seq:
            rows = self._api.events(seq - 1, limit=1)
            if not rows or (rows[0].seq, rows[0].at.isoformat()) != (seq, at):
                raise Conflict(
                    f"spool {self._path} was read from another broker's journal (row {seq} differs); "
                    "move the file away, or give this recorder another one"
                )
        self._checked_journal = True

    # --- the journal

    def _read(self, spool: Spool, sender: Sender) -> bool:
        """One page; whether it was the last one."""
        hurry = bool(spool.unnoted()) or spool.without_run()
        page = self._api.events(spool.position()[0], limit=_PAGE, timeout=_HURRY_S if hurry else _POLL_S)
        if not page:
            return True
        before = dict(self._tracked)
        operations: list[Operation] = []
        story: list[Event] = []
        for event in page:
            if event.lease is not None:
                self._take(event, spool, operations, story)
            elif event.kind is EventKind.NOTICE:
                # A node's; the final account keeps it for the leases that held something there.
                story += [replace(event, lease=key) for key, seen in self._tracked.items() if seen.active]
        changed = [one for key, one in self._tracked.items() if before.get(key) is not one]
        try:
            spool.commit(operations, changed, story, last=page[-1])
        except BaseException:
            self._tracked = before
            raise
        if any(worth(one) is Worth.KEEP for one in operations):
            sender.nudge()
        return len(page) < _PAGE

    def _take(self, event: Event, spool: Spool, operations: list[Operation], story: list[Event]) -> None:
        lease = str(event.lease)
        seen = self._tracked.get(lease)
        if seen is None:
            if spool.finished(lease):
                return
            view = self._look(lease)
            if view is None:
                return
            seen = track(view.lease)
            operations += opening(view.lease, event.who, self._fleet_url)
        if told(event, seen):
            story.append(event)
        self._tracked[lease], more = translate(event, seen)
        operations += more

    def _look(self, lease: str) -> LeaseView | None:
        try:
            return self._api.get(lease)
        except NotFound:
            _log.warning("the journal names lease %s, which the broker does not know: not recorded", lease)
            return None

    # --- money

    def _account(self, spool: Spool, sender: Sender, seen: Tracked) -> None:
        if seen.ended is not None:
            self._finish(spool, sender, seen)
        elif seen.active and self._due(seen):
            self._cost(spool, seen)

    def _due(self, seen: Tracked) -> bool:
        return seen.step_at(millis(self._now())) - max(seen.cost_step, 0) >= self._cost_every_s

    def _cost(self, spool: Spool, seen: Tracked) -> None:
        view = self._look(seen.lease)
        if view is None:
            return
        at = millis(self._now())
        now, operations = self._backfill(replace(seen, interruptions=view.lease.interruptions), at)
        now, point = cost_point(now, view.cost, now.step_at(at))
        now, gpus = allocated(now, at, live_gpus(view.lease))
        self._store(spool, now, [*operations, *point, *gpus])

    def _backfill(self, seen: Tracked, at: int) -> tuple[Tracked, list[Operation]]:
        """Points for the time in which no recorder ran or no broker answered, from the ledger."""
        start, end = max(seen.cost_step, 0), seen.step_at(at)
        every = max(self._cost_every_s, (end - start) / _MAX_BACKFILL)
        if end - start < 3 * every:
            return seen, []
        ledger = self._api.ledger(seen.lease)
        operations: list[Operation] = []
        for k in range(1, int((end - start) / every)):
            step = start + int(k * every)
            when = datetime.fromtimestamp(seen.submitted / 1000 + step, UTC)
            if ledger and ledger[0].start <= when:
                seen, point = cost_point(seen, cost_of(ledger, when), step)
                operations += point
        return seen, operations

    def _finish(self, spool: Spool, sender: Sender, seen: Tracked) -> None:
        """The final account, once no segment is open any more."""
        ledger = self._api.ledger(seen.lease)
        late = (millis(self._now()) - (seen.ended or 0)) / 1000 > _LEDGER_PATIENCE_S
        if any(segment.end is None for segment in ledger):
            if not late:
                return
            _log.warning("lease %s ended, but its ledger has an open segment: its cost may still change", seen.lease)
        view = self._look(seen.lease)
        if view is None:
            return
        ended = datetime.fromtimestamp((seen.ended or seen.submitted) / 1000, UTC)
        now = replace(seen, interruptions=view.lease.interruptions)
        done, operations = closing(now, view.cost, usd_by_epoch(ledger, ended))
        files = attachments(view.lease, ledger, spool.story(seen.lease), ended)
        self._store(spool, done, [*files, *operations])
        spool.forget_story(seen.lease)
        sender.nudge()

    def _store(self, spool: Spool, now: Tracked, operations: Sequence[Operation]) -> None:
        spool.commit(operations, [now])
        if now.done:
            self._tracked.pop(now.lease, None)
        else:
            self._tracked[now.lease] = now

    # --- back to the broker

    def _write_back(self, spool: Spool) -> None:
        for row in spool.unnoted():
            try:
                self._api.note(row.lease, self._notes(row))
            except NotFound:
                _log.warning("lease %s is gone: its MLflow run %s cannot be noted", row.lease, row.id)
            spool.noted(row.lease)

    def _notes(self, row: RunRow) -> dict[str, str]:
        notes = {"mlflow.run_id": row.id}
        base = _public(self._ui_url or self._uri)
        if base:
            page = f"#/experiments/{row.experiment}/runs/{row.id}?workflowType=machine_learning"
            notes["mlflow.run_url"] = f"{base}/{page}"
        return notes


def _public(url: str) -> str | None:
    """The address without credentials; None for a store that has no page."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return None
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
