"""Everything of Ray that Ray does not promise to keep, in one place. Pinned to ray==2.60.*; contract tests cover it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from moorage.ray.cluster import ALLOCATION_LABEL, NODE_LABEL
from moorage.ray.demand import Bundle, Demand, Gang, RayNode, Selector, Singles
from moorage.ray.pilot import Pilot, current, set_current
from moorage.ray.words import Joiner, Look, LoopFailed, Member, Overdue, Word


def find_node(address: str, label: str, value: str) -> str | None:
    """Hex id of the node of the cluster at `address` that is alive and has this label. None: there is none."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined] # Its stub leaves it out.

    infos = GcsClient(address=address).get_all_node_info(timeout=20)
    for node, info in infos.items():
        # 0 is ALIVE in GcsNodeInfo.GcsNodeState.
        if info.state == 0 and info.labels.get(label) == value:
            return str(node.hex())
    return None


def drain_node(address: str, node_id: str, deadline_ms: int, message: str) -> str:
    """Tell Ray that a node is preempted at `deadline_ms` (Unix milliseconds); why it refused, "" if it did not.

    The node takes no new work, and Ray Train checkpoints. It does not exit by itself. Calling again with an earlier
    deadline brings it forward.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined] # Its stub leaves it out.
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = GcsClient(address=address).drain_node(node_id, reason, message, deadline_ms)
    return "" if accepted else (why or "no reason given")


# === autoscaler ======================================================================================================
# Ray's autoscaler v2 as `moorage.ray.autoscaler` runs it. Of all it does, three things are used: it says what cannot be
# placed, it drains raylets that are idle, and it shows drivers what we say. It never launches anything: instances that
# it is told of ("allocated unmanaged cloud instance") are adopted.

#: RAY_NODE_TYPE_NAME of the head and of every raylet.
HEAD_TYPE = "head"
WORKER_TYPE = "moorage"
#: Ray stops nodes above this number; the broker's fleet is the real bound.
_NO_LIMIT = 1_000_000


#: Word in Ray's key-value store that the hook serves the cluster.
_NAMESPACE = b"moorage"
_SERVED = b"autoscaler"


def served() -> bool:
    """Whether the hook serves (or served) the cluster that this process is connected to."""
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_initialized

    return bool(_internal_kv_initialized() and _internal_kv_get(_SERVED, namespace=_NAMESPACE))


class RayGone(Exception):
    """The Ray head does not answer, or is another one than before. Says why."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What Ray wants and has at one moment."""

    demand: Demand
    #: Raylets that are alive.
    nodes: tuple[RayNode, ...]


class Provider:
    """The broker's allocations as instances of a cloud: Ray's `ICloudInstanceProvider`. It keeps no truth."""

    def __init__(self, head_id: str, terminate: Callable[[str], None]) -> None:
        self._head_id = head_id
        self._terminate = terminate
        #: Allocation -> whether its agent reported it running.
        self.instances: Mapping[str, bool] = {}

    def get_non_terminated(self) -> dict[str, Any]:
        from ray.autoscaler.v2.instance_manager.node_provider import CloudInstance
        from ray.core.generated.instance_manager_pb2 import NodeKind

        head = CloudInstance(self._head_id, HEAD_TYPE, NodeKind.HEAD, is_running=True)
        workers = {i: CloudInstance(i, WORKER_TYPE, NodeKind.WORKER, up) for i, up in self.instances.items()}
        return {self._head_id: head, **workers}

    def launch(self, shape: Mapping[str, int], request_id: str) -> None:
        """Never called, because `Scheduler` never launches."""
        raise AssertionError(f"Ray launches {dict(shape)} by itself ({request_id}): the broker starts nodes")

    def terminate(self, ids: Sequence[str], request_id: str) -> None:  # noqa: ARG002 - Ray's signature.
        # When a head ends, Ray also asks for the head's end.
        for instance in ids:
            if instance != self._head_id:
                self._terminate(instance)

    def poll_errors(self) -> list[Any]:
        return []


class ConfigReader:
    """Ray's `IConfigReader` without a file: the node types are those that Ray has."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._types: frozenset[str] = frozenset()
        self._config: Any = None
        self.know(frozenset({WORKER_TYPE}))

    def know(self, types: frozenset[str]) -> None:
        """Ray fails on a node whose type its configuration does not have."""
        if not types <= self._types:
            from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig

            self._types |= types
            self._config = AutoscalingConfig(self._raw(), skip_content_hash=True)

    def get_cached_autoscaling_config(self) -> Any:
        return self._config

    def refresh_cached_autoscaling_config(self) -> None:
        """Nothing to read."""

    def _raw(self) -> dict[str, Any]:
        def node_type(most: int) -> dict[str, Any]:
            return {"resources": {}, "node_config": {}, "min_workers": 0, "max_workers": most}

        commands = ("setup", "head_setup", "worker_setup", "initialization", "head_start_ray", "worker_start_ray")
        return {
            "cluster_name": "moorage",
            "max_workers": _NO_LIMIT,
            "idle_timeout_minutes": self._idle_timeout_s / 60,
            "provider": {
                "type": "external",
                "module": "unused",
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
            },
            "available_node_types": {name: node_type(_NO_LIMIT) for name in self._types} | {HEAD_TYPE: node_type(0)},
            "head_node_type": HEAD_TYPE,
            "file_mounts": {},
            "cluster_synced_files": [],
            "auth": {},
            **{f"{name}_commands": [] for name in commands},
        }


class Scheduler:
    """Ray's `IResourceScheduler`: its idle detection, no launches; a gang's raylets wait for the last of them."""

    def __init__(self, base: Any) -> None:
        self._base = base
        #: Allocations that wait for the rest of their gang.
        self.protected: frozenset[str] = frozenset()
        #: Placement groups that can never be served.
        self.denied: frozenset[str] = frozenset()

    def schedule(self, request: Any) -> Any:
        ids = {i.im_instance.instance_id: i.cloud_instance_id for i in request.current_instances if i.im_instance}
        reply = self._base.schedule(replace(request, gang_resource_requests=[], resource_requests=[]))
        reply.to_launch = []
        reply.to_terminate = [t for t in reply.to_terminate if ids.get(t.instance_id) not in self.protected]
        reply.infeasible_gang_resource_requests = [
            gang for gang in request.gang_resource_requests if _group(gang.details)[0] in self.denied
        ]
        return reply


class Gcs:
    """Ray's GcsClient, which also tells when an idle raylet accepted its drain: from then on nothing runs on it."""

    def __init__(self, client: Any, drained: Callable[[str], None]) -> None:
        self._client = client
        self._drained = drained

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def drain_node(self, node_id: str, **options: Any) -> tuple[bool, str]:
        accepted, why = self._client.drain_node(node_id=node_id, **options)
        if accepted:
            self._drained(node_id)
        return accepted, why


class Autoscaling:
    """Ray's autoscaler beside one head.

    Args:
        given_back: called with an allocation when its raylet accepted an idle drain, maybe from another thread.

    Raises:
        RayGone: from the constructor and from every method but `say`.
    """

    def __init__(self, address: str, head_id: str, idle_timeout_s: float, given_back: Callable[[str], None]) -> None:
        self._given_back = given_back
        #: Ray node -> allocation, of all raylets that joined.
        self._joined: dict[str, str] = {}
        self._drained: set[str] = set()
        with _or_gone(address):
            from ray._raylet import GcsClient  # type: ignore[attr-defined] # Its stub leaves it out.

            self._gcs = Gcs(GcsClient(address=address), self._on_drained)
            self._address = address
            self.session = self._session()
            self._gcs.internal_kv_put(_SERVED, head_id.encode(), True, _NAMESPACE, timeout=10)  # noqa: FBT003
            self._provider = Provider(head_id, self._on_terminate)
            self._config = ConfigReader(idle_timeout_s)
            self._autoscaler = _autoscaler(self.session, self._config, self._gcs, self._provider)
            self._scheduler: Scheduler = self._autoscaler._scheduler

    def read(self) -> Snapshot:
        """Ray's demand and nodes now."""
        with _or_gone(self._address):
            from ray.autoscaler.v2.sdk import get_cluster_resource_state

            session = self._session()
            if session != self.session:
                raise RayGone(f"the head at {self._address} started again: session {session}, not {self.session}")
            state = get_cluster_resource_state(self._gcs)
            # Ray remembers its last thousand dead nodes, so this is bounded.
            self._joined = {n.node_id.hex(): n.instance_id for n in state.node_states if n.instance_id}
            self._config.know(frozenset(n.ray_node_type_name for n in state.node_states if n.instance_id) - {HEAD_TYPE})
            return Snapshot(demand_of(state), nodes_of(state))

    def step(self, instances: Mapping[str, bool], protected: frozenset[str], denied: frozenset[str]) -> None:
        """One round: adopt `instances` (allocation -> running), drain what is idle, report to Ray."""
        self._provider.instances = instances
        self._drained &= set(instances)
        self._scheduler.protected, self._scheduler.denied = protected, denied
        with _or_gone(self._address):
            state = self._autoscaler.update_autoscaling_state()
            if state is not None:
                self._gcs.report_autoscaling_state(state.SerializeToString())

    def say(self, text: str) -> None:
        """Print a line at every driver of the cluster."""
        event = {"message": text, "severity": "WARNING", "source_type": "AUTOSCALER"}
        ip = self._address.rpartition(":")[0]
        data = {"ip": ip, "pid": "autoscaler", "job": None, "is_err": False, "actor_name": None, "task_name": None}
        with _or_gone(self._address):
            self._gcs.publish_logs({**data, "lines": [json.dumps(event)]})

    def _session(self) -> str:
        from ray._private.ray_constants import KV_NAMESPACE_SESSION

        name = self._gcs.internal_kv_get(b"session_name", KV_NAMESPACE_SESSION, timeout=10)
        if not name:
            raise RayGone(f"the head at {self._address} has no session yet")
        return str(name.decode())

    def _on_drained(self, node_id: str) -> None:
        instance = self._joined.get(node_id)
        if instance is not None:
            self._drained.add(instance)
            self._given_back(instance)

    def _on_terminate(self, instance: str) -> None:
        """Ray asks for the end of drained raylets, of instances that never joined, and of dead ones.

        The last are not given back: the broker learns of them from their agents, and repairs the gang.
        """
        if instance in self._drained or instance not in self._joined.values():
            self._given_back(instance)


def _autoscaler(session: str, config: ConfigReader, gcs: Gcs, provider: Provider) -> Any:
    from ray.autoscaler.v2.autoscaler import Autoscaler
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler

    class MoorageAutoscaler(Autoscaler):  # type: ignore[misc] # Ray has no types.
        def _init_cloud_instance_provider(self, config: Any, config_reader: Any) -> None:  # noqa: ARG002
            self._cloud_instance_provider = provider

    autoscaler = MoorageAutoscaler(session_name=session, config_reader=config, gcs_client=gcs)
    autoscaler._scheduler = Scheduler(ResourceDemandScheduler(None))
    return autoscaler


@contextmanager
def _or_gone(address: str) -> Iterator[None]:
    """Ray raises many kinds of errors when a head is not there, or refuses the token; all mean the same to us."""
    try:
        yield
    except (RayGone, ImportError):  # Ray that is not installed will not come back by itself.
        raise
    except Exception as error:
        raise RayGone(f"no answer from the Ray head at {address}: {type(error).__name__}: {error}") from error


def demand_of(state: Any) -> Demand:
    """Demand of a `ClusterResourceState`."""
    return Demand(
        gangs=tuple(_gang(g) for g in state.pending_gang_resource_requests),
        singles=tuple(Singles(_bundle(r.request), int(r.count)) for r in state.pending_resource_requests),
    )


def nodes_of(state: Any) -> tuple[RayNode, ...]:
    """Raylets of a `ClusterResourceState` that are alive; one that drains is not idle: it takes no work."""
    from ray.core.generated.autoscaler_pb2 import NodeStatus

    dead, draining = NodeStatus.Value("DEAD"), NodeStatus.Value("DRAINING")
    return tuple(
        RayNode(n.instance_id, 0 if n.status == draining else int(n.idle_duration_ms))
        for n in state.node_states
        if n.instance_id and n.status != dead and n.ray_node_type_name != HEAD_TYPE
    )


def _gang(gang: Any) -> Gang:
    group, strategy, state = _group(gang.details)
    requests = gang.bundle_selectors[0].resource_requests if gang.bundle_selectors else gang.requests
    return Gang(group, strategy, tuple(_bundle(r) for r in requests), rescheduling=state == "RESCHEDULING")


def _group(details: str) -> tuple[str, str, str]:
    """``<36 hex>:STRICT_SPREAD|PENDING``: placement group, strategy, state."""
    group, _, rest = details.partition(":")
    strategy, _, state = rest.partition("|")
    return group, strategy, state


def _bundle(request: Any) -> Bundle:
    from ray.core.generated.common_pb2 import LabelSelectorOperator

    negated = LabelSelectorOperator.Value("LABEL_OPERATOR_NOT_IN")
    constraints = (c for selector in request.label_selectors[:1] for c in selector.label_constraints)
    selectors = tuple(Selector(c.label_key, tuple(c.label_values), c.operator == negated) for c in constraints)
    return Bundle(dict(request.resources_bundle), selectors)


# === train ===========================================================================================================
# Ray Train's controller with our scaling and failure policies (`moorage.ray.trainer`).


def train_settings() -> None:
    """Ray reads these when the controller starts; it copies them to controller and workers.

    We watch drains ourselves (`raylets`): with Ray's watcher on, its controller waits for the drain's deadline and does
    not ask the scaling policy meanwhile. Workers keep their folder, so that relative paths mean what they say.
    """
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.25"
    os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "30"
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = "60"
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"


def this_worker() -> Joiner:
    """Where this training worker is."""
    import ray
    import ray.train

    train, here = ray.train.get_context(), ray.get_runtime_context()
    return Joiner(
        ray_rank=train.get_world_rank(),
        ray_size=train.get_world_size(),
        allocation=here.get_node_labels().get(ALLOCATION_LABEL, ""),
        host=here.get_node_id(),
        gpus=tuple(sorted(int(gpu) for gpu in here.get_accelerator_ids().get("GPU", []) if gpu.isdecimal())),
    )


def raylets(gpus_per_worker: int) -> tuple[dict[str, Member], dict[str, float]]:
    """Allocations whose raylet is alive, and deadlines (Unix seconds) of those that drain (0 for none: now)."""
    import ray
    from ray._private.state import state

    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    names = {i: node["Labels"][ALLOCATION_LABEL] for i, node in nodes.items() if ALLOCATION_LABEL in node["Labels"]}
    members = {
        name: Member(
            allocation=name,
            node=nodes[i]["Labels"].get(NODE_LABEL, i),
            workers=int(nodes[i]["Resources"].get("GPU", 0)) // gpus_per_worker,
            gpus=(),
        )
        for i, name in names.items()
    }
    draining = {names[i]: ms / 1000 for i, ms in state.get_draining_nodes().items() if i in names}
    return {name: member for name, member in members.items() if member.workers > 0}, draining


class RayCluster:
    """`pilot.Cluster` over this process's Ray connection."""

    def __init__(self, gang: Any, gpus_per_worker: int) -> None:
        self._gang, self._gpus = gang, gpus_per_worker

    def look(self, word: Word | None) -> Look | None:
        import ray

        try:
            look: Look = ray.get(self._gang.look.remote(word), timeout=5)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            return None
        return look

    def begin(self, group: int, members: tuple[Member, ...]) -> None:
        import ray

        ray.get(self._gang.begin.remote(group, members, sum(member.workers for member in members)), timeout=60)

    def raylets(self) -> tuple[dict[str, Member], dict[str, float]]:
        return raylets(self._gpus)


def here_selector() -> dict[str, str]:
    """Label selector of this process's node."""
    import ray
    from ray._raylet import RAY_NODE_ID_KEY  # type: ignore[attr-defined] # Its stub leaves it out.

    return {RAY_NODE_ID_KEY: ray.get_runtime_context().get_node_id()}


def scaling_policy(pilot: Pilot, scaling_config: Any) -> Any:
    """A `ScalingPolicy` that asks the pilot, and pins each group to the allocations that it names."""
    from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, ScalingPolicy

    class PilotScaling(ScalingPolicy):  # type: ignore[misc] # Ray has no types.
        _next: tuple[Member, ...] = ()

        def after_controller_start(self, train_run_context: Any) -> None:  # noqa: ARG002
            set_current(pilot)
            pilot.start()

        async def before_controller_shutdown(self) -> None:
            pilot.finish()

        def before_controller_abort(self) -> None:
            pilot.finish()

        def make_decision_for_non_running_worker_group(self) -> Any:
            return self._decide(pilot.start_group())

        def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> Any:  # noqa: ARG002
            return self._decide(pilot.resize_group())

        def _decide(self, members: tuple[Member, ...] | None) -> Any:
            if not members:
                return NoopDecision()
            self._next = members
            return ResizeDecision(
                num_workers=sum(member.workers for member in members),
                resources_per_worker=self.scaling_config._resources_per_worker_not_none,
            )

        def on_controller_start_worker_group(self, *, scaling_config: Any, num_workers: int) -> dict[str, str]:  # noqa: ARG002
            pilot.started(self._next)
            return {ALLOCATION_LABEL: f"in({','.join(member.allocation for member in self._next)})"}

        def _get_num_workers_for_resource_request(self) -> int:
            return sum(member.workers for member in self._next)

    return PilotScaling(scaling_config)


def failure_policy(failure_config: Any) -> Any:
    """A `FailurePolicy`: the loop's own exception ends the run at once, lost workers start another group."""
    from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy

    class LossTolerant(FailurePolicy):  # type: ignore[misc] # Ray has no types.
        def make_decision(self, training_failed_error: Any) -> Any:
            return FailureDecision.RETRY if _retry(training_failed_error) else FailureDecision.RAISE

    return LossTolerant(failure_config)


def _retry(error: Any) -> bool:
    pilot = current()
    if pilot is None or pilot.stopping is not None:
        return False
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    dead = [rank for rank, failure in failures.items() if not isinstance(failure, LoopFailed)]
    if failures and not dead and not pilot.may_be_collateral():
        return False
    cause = getattr(error, "controller_failure", None)
    if cause is not None and not _is_loss(cause):
        return False
    return pilot.lost(dead, str(error)[:2000])


def _is_loss(cause: BaseException) -> bool:
    """Whether a controller's error means that workers or nodes went while a group was being started."""
    from ray.exceptions import GetTimeoutError, NodeDiedError, RayActorError, WorkerCrashedError
    from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError

    startup = (WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError)
    return isinstance(cause, (*startup, RayActorError, WorkerCrashedError, NodeDiedError, GetTimeoutError))


def train(run: Callable[[], None], *, workers: int, gpus: int, name: str, folder: str, pilot: Pilot | None) -> None:
    """Run `run` on `workers` workers with Ray's stock trainer; with a pilot, on the groups that it names.

    Raises:
        LoopFailed: the loop raised.
        Overdue: the run was asked to stop and ended without its workers.
        ray.train.TrainingFailedError: anything else.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    class Trainer(DataParallelTrainer):  # type: ignore[misc] # Ray has no types.
        def _create_default_callbacks(self) -> Any:
            # Removes placement groups after a controller that died; ours die with the job. It costs a process.
            made = super()._create_default_callbacks()
            return [callback for callback in made if not isinstance(callback, PlacementGroupCleanerCallback)]

        def _initialize_and_run_controller(self, **kwargs: Any) -> Any:
            if pilot is not None:
                kwargs["scaling_policy"] = scaling_policy(pilot, self.scaling_config)
                kwargs["failure_policy"] = failure_policy(self.run_config.failure_config)
            return super()._initialize_and_run_controller(**kwargs)

    each = {"CPU": 0, "GPU": gpus} if gpus else {"CPU": 1}
    scaling = ScalingConfig(num_workers=workers, use_gpu=gpus > 0, resources_per_worker=each)
    config = RunConfig(name=name, storage_path=folder, failure_config=FailureConfig(max_failures=0))
    try:
        Trainer(run, scaling_config=scaling, run_config=config).fit()
    except TrainingFailedError as error:
        raise _cause(error) from error


def _cause(error: Any) -> BaseException:
    """What the driver should speak of: the loop's traceback, or that the run was stopped; else the error itself."""
    inside = [*getattr(error, "worker_failures", {}).values(), getattr(error, "controller_failure", None)]
    told = next((each for each in inside if isinstance(each, LoopFailed | Overdue)), error)
    return told if isinstance(told, BaseException) else error
