"""The one thread that talks to the tracking server: takes operations from the spool, oldest first, and writes them."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, assert_never

from moorage.mlflow.operations import Attach, OpenRun, SetStatus, Write
from moorage.mlflow.spool import RunRow, Spool, Spooled

_log = logging.getLogger(__name__)

#: One call may block for at most about two of these; the client's own defaults add up to four minutes.
_BOUNDS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    # A broker calls nobody that its operator did not name.
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_WINDOW = 400
#: MLflow's own limits for one log-batch request.
_MAX_METRICS, _MAX_OTHERS = 1000, 100
#: Answers that will be the same next time; what else goes wrong is tried again.
_FINAL_STATUS = frozenset({400, 404, 409, 413})


class Sender:
    """Sends until told to stop. `flush_every_s`: curves are collected this long; what opens or ends a run is not."""

    def __init__(self, spool: Spool, tracking_uri: str, experiment: str, *, flush_every_s: float) -> None:
        self._spool, self._uri, self._experiment_name = spool, tracking_uri, experiment
        self._flush_every_s = flush_every_s
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moorage-mlflow-sender", daemon=True)
        self._client: Any = None
        self._experiment: str | None = None
        self._pause = 0.0

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        """There is something that should not wait."""
        self._wake.set()

    def stop(self, timeout: float) -> None:
        """One more round, then end. What is not sent stays in the spool."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout)

    # --- the loop

    def _run(self) -> None:
        with _bounded_calls():
            while not self._stop.is_set():
                self._round()
                self._rest()
            if not self._pause:
                self._round()

    def _rest(self) -> None:
        if self._pause:
            self._stop.wait(self._pause)
        else:
            self._wake.wait(self._flush_every_s)
            self._wake.clear()

    def _round(self) -> None:
        try:
            while window := self._spool.head(_WINDOW):
                self._send(window)
                if self._pause:
                    _log.info("MLflow at %s answers again", self._uri)
                self._pause = 0.0
                if len(window) < _WINDOW:
                    return
        except Exception as error:  # noqa: BLE001 - whatever it is, the spool keeps it and the thread must live
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not self._pause and not self._stop.is_set():
            waiting = self._spool.waiting()
            _log.warning(
                "MLflow at %s cannot be written (%s): %d operations wait in the spool; next try in at most %d s",
                self._uri,
                _first_line(error),
                waiting,
                _LONGEST_PAUSE,
                exc_info=None if isinstance(error, OSError | _mlflow_error()) else error,
            )
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)

    def _send(self, window: Sequence[Spooled]) -> None:
        """Metrics of one run are merged up to its next other operation; the order within a run is kept."""
        batches: dict[tuple[str, int], list[Spooled]] = {}
        for spooled in window:
            key = (spooled.operation.lease, spooled.operation.epoch)
            if isinstance(spooled.operation, Write):
                batches.setdefault(key, []).append(spooled)
                continue
            self._write_all(batches.pop(key, []))
            self._one(spooled)
        for batch in batches.values():
            self._write_all(batch)

    def _write_all(self, batch: Sequence[Spooled]) -> None:
        if not batch:
            return
        try:
            self._write([spooled.operation for spooled in batch if isinstance(spooled.operation, Write)])
        except _mlflow_error() as error:
            if not _final(error):
                raise
            # One of them is bad: find it, send the others.
            for spooled in batch:
                self._one(spooled)
            return
        self._spool.sent([spooled.id for spooled in batch])

    def _one(self, spooled: Spooled) -> None:
        try:
            self._do(spooled)
        except _mlflow_error() as error:
            if not _final(error):
                raise
            _log.warning(
                "MLflow refused %s of lease %s: %s",
                type(spooled.operation).__name__,
                spooled.operation.lease,
                _first_line(error),
            )
            self._spool.refuse(spooled, _first_line(error))
            return
        self._spool.sent([spooled.id])

    def _do(self, spooled: Spooled) -> None:
        match spooled.operation:
            case OpenRun() as opening:
                self._open(opening)
            case Write() as write:
                self._write([write])
            case Attach() as attach:
                self._attach(attach)
            case SetStatus() as status:
                self._set_status(status)
            case never:
                assert_never(never)

    # --- MLflow

    @property
    def _mlflow(self) -> Any:
        if self._client is None:
            from mlflow import MlflowClient

            self._client = MlflowClient(tracking_uri=self._uri)
        return self._client

    def _experiment_id(self) -> str:
        if self._experiment is None:
            found = self._mlflow.get_experiment_by_name(self._experiment_name)
            if found is None:
                self._experiment = self._mlflow.create_experiment(
                    self._experiment_name, tags={"mlflow.experimentKind": "custom_model_development"}
                )
            else:
                if found.lifecycle_stage == "deleted":
                    self._mlflow.restore_experiment(found.experiment_id)
                self._experiment = found.experiment_id
        return str(self._experiment)

    def _open(self, opening: OpenRun) -> None:
        """Search first: the recorder may have died between creating the run and remembering it."""
        if self._spool.run(opening.lease, opening.epoch) is not None:
            return
        try:
            self._open_in(self._experiment_id(), opening)
        except _mlflow_error() as error:
            if not _final(error):
                raise
            # The experiment was deleted, or another recorder made it just now: look again, once.
            self._experiment = None
            self._open_in(self._experiment_id(), opening)

    def _open_in(self, experiment: str, opening: OpenRun) -> None:
        found = self._find(experiment, opening.lease, opening.epoch)
        run = found or self._mlflow.create_run(
            experiment, start_time=opening.start, tags=self._run_tags(opening), run_name=opening.name
        )
        self._spool.put_run(RunRow(opening.lease, opening.epoch, run.info.run_id, experiment))

    def _run_tags(self, opening: OpenRun) -> dict[str, str]:
        tags = dict(opening.tags)
        if opening.epoch:
            tags["mlflow.parentRunId"] = self._run_id(opening.lease, 0)
        return tags

    def _find(self, experiment: str, lease: str, epoch: int) -> Any:
        which = f"tags.`moorage.epoch` = '{epoch}'" if epoch else "tags.`moorage.kind` = 'lease'"
        found = self._mlflow.search_runs(
            [experiment], filter_string=f"tags.`moorage.lease` = '{lease}' AND {which}", max_results=1
        )
        return found[0] if found else None

    def _run_id(self, lease: str, epoch: int) -> str:
        row = self._spool.run(lease, epoch)
        if row is None:
            # A pruned or lost row of an old lease: its run is still found by its tags.
            found = self._find(self._experiment_id(), lease, epoch)
            if found is None:
                raise _gone(lease, epoch)
            row = RunRow(lease, epoch, found.info.run_id, self._experiment_id())
            self._spool.put_run(row)
        return row.id

    def _write(self, writes: Sequence[Write]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        run = self._run_id(writes[0].lease, writes[0].epoch)
        points = list(dict.fromkeys(point for write in writes for point in write.points))
        params = {key: value for write in writes for key, value in write.params.items()}
        tags = {key: value for write in writes for key, value in write.tags.items()}
        for part in _parts(points, _MAX_METRICS):
            self._mlflow.log_batch(run, metrics=[Metric(p.key, p.value, p.at, p.step) for p in part], synchronous=True)
        for some in _parts(list(params.items()), _MAX_OTHERS):
            self._mlflow.log_batch(run, params=[Param(key, value) for key, value in some], synchronous=True)
        for some in _parts(list(tags.items()), _MAX_OTHERS):
            self._mlflow.log_batch(run, tags=[RunTag(key, value[:8000]) for key, value in some], synchronous=True)

    def _attach(self, attach: Attach) -> None:
        run = self._run_id(attach.lease, attach.epoch)
        path = Path(attach.path)
        with tempfile.TemporaryDirectory(prefix="moorage-mlflow-") as folder:
            local = Path(folder) / path.name
            local.write_text(attach.text, encoding="utf-8")
            self._mlflow.log_artifact(run, str(local), str(path.parent))
        if attach.table:
            self._list_table(run, attach.path)

    def _list_table(self, run: str, path: str) -> None:
        """What `log_table` does besides writing the file; the user's own tables stay listed."""
        tables = json.loads(self._mlflow.get_run(run).data.tags.get("mlflow.loggedArtifacts", "[]"))
        entry = {"path": path, "type": "table"}
        if entry not in tables:
            self._mlflow.set_tag(run, "mlflow.loggedArtifacts", json.dumps([*tables, entry]))

    def _set_status(self, status: SetStatus) -> None:
        run = self._run_id(status.lease, status.epoch)
        if status.end is None:
            self._mlflow.update_run(run, status=status.status)
        else:
            self._mlflow.set_terminated(run, status=status.status, end_time=status.end)


@contextmanager
def _bounded_calls() -> Iterator[None]:
    """The client reads its time-outs from the environment at each call. What an operator set stays."""
    ours = {key: value for key, value in _BOUNDS.items() if key not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for key in ours:
            os.environ.pop(key, None)


def _mlflow_error() -> type[Exception]:
    from mlflow.exceptions import MlflowException

    return MlflowException  # type: ignore[no-any-return]


def _gone(lease: str, epoch: int) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

    return MlflowException(  # type: ignore[no-any-return]
        f"there is no MLflow run of lease {lease}, attempt {epoch}; was it deleted?",
        error_code=RESOURCE_DOES_NOT_EXIST,
    )


def _final(error: Any) -> bool:
    """Whether MLflow itself said no (and will again); a proxy's 404 has no MLflow error code and is tried again."""
    return error.get_http_status_code() in _FINAL_STATUS and error.error_code != "ENDPOINT_NOT_FOUND"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
