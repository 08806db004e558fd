"""`ElasticTrainer`: one script that runs on a laptop, submits itself, and rides out whatever happens to its lease."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from moorage import settings
from moorage.core.invalid import Invalid
from moorage.ray.pilot import Attempt, Pilot
from moorage.ray.steering import Limits
from moorage.ray.words import Ending, LoopFailed, Overdue
from moorage.ray.worker import Loop, Spec, run

#: Exit code of a driver whose run was asked to stop (EX_TEMPFAIL): a checkpoint is there, the work is not done.
EXIT_STOPPED = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a run ended."""

    #: What rank 0's loop returned.
    metrics: Mapping[str, Any]
    #: URL of the last checkpoint. None: none was written.
    checkpoint: str | None
    #: URL of the folder with checkpoints and published models. None: no storage.
    storage: str | None


class ElasticTrainer:
    """Data-parallel training that survives interruptions and resizes at a fixed global batch.

    `fit` does what its surroundings ask for:

    - started by an agent (MOORAGE_LEASE is set), it trains on the lease's own Ray cluster, grows, shrinks and moves as
      the broker says, and resumes from its checkpoints;
    - with only MOORAGE_URL set, it submits this script as a lease, shows how it fares and returns its result;
    - else it is Ray's stock trainer on the machine at hand, with one fixed group.

    Args:
        train_loop: called as ``train_loop(config, job)`` on each worker; see `Job`. Returns the result (JSON).
        config: given to the loop; picklable.
        workers: (min, max), or one number. Under a lease the broker decides, and max is only its request's business.
        gpus_per_worker: whole GPUs of each worker.
        global_batch: samples of an optimiser step over all workers.
        samples_total: samples of the whole run, for progress; None: `Job.batches` knows.
        storage: fsspec URL for checkpoints that every node can reach; a lease gets a folder of its own below it. None:
            the lease's, or a temporary folder. On your own machine the same storage goes on where it stopped.
        name: of the run; None: the script's.
        checkpoint_every_s: seconds between periodic checkpoints.
        keep: complete checkpoints to keep, at least 2.
    """

    def __init__(
        self,
        train_loop: Loop,
        *,
        config: Mapping[str, Any] | None = None,
        workers: tuple[int, int] | int | None = None,
        gpus_per_worker: int = 1,
        global_batch: int,
        samples_total: int | None = None,
        storage: str | None = None,
        name: str | None = None,
        checkpoint_every_s: float = 10.0,
        keep: int = 3,
    ) -> None:
        self._loop, self._config = train_loop, dict(config or {})
        self._workers = (workers, workers) if isinstance(workers, int) else workers
        self._gpus, self._batch, self._total = gpus_per_worker, global_batch, samples_total
        self._storage, self._every, self._keep = storage, checkpoint_every_s, keep
        self._name = name or Path(sys.argv[0]).stem or "train"
        self._check()

    def _check(self) -> None:
        if self._batch < 1:
            raise Invalid("global_batch", self._batch, "must be at least 1")
        if self._gpus < 1:
            raise Invalid("gpus_per_worker", self._gpus, "give each worker at least 1 GPU")
        if self._every <= 0:
            raise Invalid("checkpoint_every_s", self._every, "give a positive number of seconds")
        if self._workers is not None and not 1 <= self._workers[0] <= self._workers[1]:
            raise Invalid("workers", self._workers, "give (min, max) with 1 <= min <= max")

    def fit(self) -> Result:
        """Train to the end.

        Under a lease this ends the process where the run did not complete: with the user's traceback and code 1, or
        with `EXIT_STOPPED` when it was asked to stop.

        Raises:
            LoopFailed: the loop raised (outside a lease).
            Invalid: an argument or the environment cannot be right.
        """
        if os.environ.get(settings.LEASE):
            return self._attached()
        if os.environ.get(settings.URL):
            from moorage.ray.submit import submit_and_watch

            return submit_and_watch(self._name, self._workers or (1, 1), self._gpus, self._storage)
        return self._plain()

    # --- under a lease

    def _attached(self) -> Result:
        attempt = _attempt()
        storage = lease_storage(self._storage, os.environ.get(settings.STORAGE), attempt.lease)
        if not storage:
            raise Invalid("storage", None, "set the policy's or the job's storage to a URL that every node can reach")
        address = os.environ.get("RAY_ADDRESS")
        if not address:
            raise Invalid("RAY_ADDRESS", address, "submit the job with kind ray: then the agent sets it")
        _connect(address)
        from moorage.ray.internals import RayCluster, train

        gang = self._gang()
        pilot = Pilot(attempt, RayCluster(gang, self._gpus), Limits(min_workers=(self._workers or (1, 1))[0]))
        name = f"{attempt.lease}-{attempt.epoch}"
        try:
            train(self._runner(gang, storage, attempt.epoch), workers=1, gpus=self._gpus, name=name, pilot=pilot,
                  folder=_ray_folder(storage))  # fmt: skip
        except LoopFailed as error:
            _fail(error)
        except Overdue as error:
            _stop(str(error))
        except Exception as error:  # noqa: BLE001 - said, and the process ends with code 1.
            # A stop and the loss of workers may meet; then the stop is what happened.
            stopped = _ending(gang).stopped
            _stop(stopped) if stopped is not None else _fail(error)
        ending = _ending(gang)
        if ending.result is None:
            _stop(ending.stopped or "the loop ended without a result")
        _write_marker(ending.result)
        return Result(metrics=json.loads(ending.result), checkpoint=ending.checkpoint, storage=storage)

    # --- on its own

    def _plain(self) -> Result:
        _connect(os.environ.get("RAY_ADDRESS"))
        from moorage.ray.internals import train

        workers, gpus = self._fixed()
        storage = self._storage or str(Path(tempfile.gettempdir()) / "moorage-train" / f"{self._name}-{os.getpid()}")
        gang = self._gang()
        import ray

        ray.get(gang.begin.remote(1, (), workers), timeout=60)
        train(self._runner(gang, storage, 1), workers=workers, gpus=gpus, name=self._name, pilot=None,
              folder=_ray_folder(storage))  # fmt: skip
        ending = _ending(gang)
        if ending.result is None:
            raise RuntimeError("the loop ended without a result")
        _write_marker(ending.result)
        return Result(metrics=json.loads(ending.result), checkpoint=ending.checkpoint, storage=storage)

    def _fixed(self) -> tuple[int, int]:
        """Workers and GPUs of each: as many as fit, up to max; on CPUs, if there are no GPUs at all."""
        import ray

        low, high = self._workers or (1, 1)
        have = int(ray.cluster_resources().get("GPU", 0)) // self._gpus
        if have == 0:
            return low, 0
        if have < low:
            raise Invalid("workers", (low, high), f"only {have} fit here; lower min, or set MOORAGE_URL to lease GPUs")
        return min(have, high), self._gpus

    # --- both

    def _gang(self) -> Any:
        """The gang's actor, on this node; it ends with this process."""
        import ray

        from moorage.ray.gang import Gang
        from moorage.ray.internals import here_selector

        options = {"num_cpus": 0, "max_restarts": -1, "max_concurrency": 1000, "label_selector": here_selector()}
        return ray.remote(Gang).options(**options).remote(self._every)

    def _runner(self, gang: Any, storage: str, epoch: int) -> Any:
        _ship_modules(Path(sys.argv[0]).resolve().parent)
        seconds = os.environ.get(settings.FAKE_SAMPLE_SECONDS)
        spec = Spec(
            loop=self._loop,
            config=self._config,
            gang=gang,
            storage=storage,
            resume_from=os.environ.get(settings.RESUME_FROM) or None,
            epoch=epoch,
            keep=self._keep,
            global_batch=self._batch,
            samples_total=self._total,
            sample_s=float(seconds) if seconds else None,
        )

        def train_worker() -> None:
            run(spec)

        return train_worker


def lease_storage(given: str | None, offered: str | None, lease: str) -> str | None:
    """Where a lease's checkpoints go: a folder of its own, or another lease's would be restored.

    Args:
        given: the trainer's argument; wins, unless the broker's offer is already a folder below it.
        offered: MOORAGE_STORAGE.
    """
    if not given or (offered and offered.startswith(given.rstrip("/") + "/")):
        return offered
    return f"{given.rstrip('/')}/{lease}"


def _attempt() -> Attempt:
    where = settings.connection()
    try:
        epoch = int(os.environ.get(settings.EPOCH, ""))
    except ValueError as error:
        raise Invalid(settings.EPOCH, os.environ.get(settings.EPOCH), "the agent sets it to a number") from error
    return Attempt(url=where.url, token=where.token, lease=os.environ[settings.LEASE], epoch=epoch)


def _connect(address: str | None) -> None:
    from moorage.ray.internals import train_settings

    # Before Ray is imported: it reads some of them then.
    train_settings()
    import ray

    if ray.is_initialized():
        return
    quiet: dict[str, Any] = {} if address else {"include_dashboard": False}
    ray.init(address=address, logging_level="WARNING", **quiet)


def _ship_modules(folder: Path) -> None:
    """Modules beside the script travel with the loop: other nodes have no copy of the folder, or not at this path.

    Those that the loop itself imports first are not known here; import them at the top of the script.
    """
    from ray import cloudpickle

    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        beside = file is not None and Path(file).resolve().is_relative_to(folder)
        if beside and module.__name__ != "__main__" and not _installed(Path(str(file)).resolve()):
            cloudpickle.register_pickle_by_value(module)


def _installed(file: Path) -> bool:
    """Whether a file is a package's, or Moorage's own, which every node has."""
    own = Path(__file__).resolve().parents[1]
    return "site-packages" in file.parts or file.is_relative_to(own) or file.is_relative_to(sys.base_prefix)


def _ray_folder(storage: str) -> str:
    """Where Ray Train keeps its own few files: beside ours where it can, for it knows fewer kinds of storage."""
    if "://" not in storage:
        return str(Path(storage).resolve() / "ray")
    if storage.startswith("file://"):
        return f"{storage.removeprefix('file://')}/ray"
    return str(Path(tempfile.gettempdir()) / f"moorage-ray-{os.getpid()}")


def _ending(gang: Any) -> Ending:
    import ray

    try:
        ending: Ending = ray.get(gang.ending.remote(), timeout=30)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        raise RuntimeError("the gang's actor is gone, and the result with it") from error
    return ending


def _write_marker(result: str) -> None:
    """Positive evidence that the job is done: whole or not there."""
    path = os.environ.get(settings.MARKER)
    if not path:
        return
    target = Path(path)
    aside = target.with_name(target.name + ".part")
    with aside.open("w") as file:
        file.write(result)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(target)


def _fail(error: BaseException) -> NoReturn:
    text = str(error) if isinstance(error, LoopFailed) else f"{type(error).__name__}: {error}"
    sys.stdout.flush()
    sys.stderr.write(f"\n{text.rstrip()}\n")
    raise SystemExit(1)


def _stop(reason: str) -> NoReturn:
    sys.stderr.write(f"stopped: {reason}\n")
    raise SystemExit(EXIT_STOPPED)
