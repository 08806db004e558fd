"""What we touch of Ray that Ray does not promise to keep: checked by signature, without a cluster."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import ray

from moorage.ray import internals
from moorage.ray.words import LoopFailed, Member, Overdue


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def source(what: Any) -> str:
    return inspect.getsource(what)


def test_the_pin() -> None:
    assert ray.__version__.startswith("2.60.")


def test_the_trainer_has_the_seams() -> None:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    run = DataParallelTrainer._initialize_and_run_controller
    assert parameters(run) == ["self", "controller_init_kwargs"]
    assert inspect.signature(run).parameters["controller_init_kwargs"].kind is inspect.Parameter.VAR_KEYWORD
    fit = source(DataParallelTrainer.fit)
    assert all(f"{name}=" in fit for name in ("scaling_policy", "failure_policy"))
    assert parameters(DataParallelTrainer._create_default_callbacks) == ["self"]


def test_the_controller_asks_what_we_answer() -> None:
    from ray.train.v2._internal.execution.controller import TrainController

    step = source(TrainController._step)
    assert "make_decision_for_running_worker_group(" in step
    start = source(TrainController._start_worker_group)
    assert "callback.on_controller_start_worker_group(" in start
    assert "scaling_config=scaling_config, num_workers=num_workers" in start
    # The old group is gone before the new one's selector is asked for: `Pilot.started` relies on it.
    resize = source(TrainController._execute_resize_decision)
    assert resize.index("self._shutdown_worker_group()") < resize.index("self._start_worker_group(")
    # Errors that a policy raises come back to the failure policy as ControllerError.
    assert "ControllerError(e)" in source(TrainController._run_control_loop_iteration)


def test_the_scaling_policy_is_a_controller_callback() -> None:
    from ray.train.v2._internal.execution.callback import ControllerCallback
    from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, ScalingPolicy

    assert issubclass(ScalingPolicy, ControllerCallback)
    assert parameters(ScalingPolicy.__init__) == ["self", "scaling_config"]
    assert ScalingPolicy.__abstractmethods__ == {
        "make_decision_for_non_running_worker_group",
        "make_decision_for_running_worker_group",
        "_get_num_workers_for_resource_request",
    }
    assert parameters(ScalingPolicy.make_decision_for_running_worker_group)[1:] == [
        "worker_group_state",
        "worker_group_status",
    ]
    assert parameters(ControllerCallback.after_controller_start) == ["self", "train_run_context"]
    assert inspect.iscoroutinefunction(ControllerCallback.before_controller_shutdown)
    assert parameters(ResizeDecision) == ["num_workers", "resources_per_worker"]
    assert parameters(NoopDecision) == []


def test_failures_look_as_we_read_them() -> None:
    from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
    from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

    assert parameters(FailurePolicy.make_decision) == ["self", "training_failed_error"]
    assert {decision.name for decision in FailureDecision} >= {"RETRY", "RAISE"}
    assert WorkerGroupError("m", {1: ValueError()}).worker_failures.keys() == {1}
    assert isinstance(ControllerError(Overdue("x")).controller_failure, Overdue)


def test_settings_have_the_names_that_ray_reads() -> None:
    from ray.train.v2._internal import constants

    text = source(internals.train_settings)
    for name in (
        constants.HEALTH_CHECK_INTERVAL_S_ENV_VAR,
        constants.ENABLE_PREEMPTION_WATCHER_ENV_VAR,
        constants.WORKER_GROUP_START_TIMEOUT_S_ENV_VAR,
        constants.WORKER_HEALTH_CHECK_TIMEOUT_S_ENV_VAR,
        constants.V2_ENABLED_ENV_VAR,
    ):
        assert f'"{name}"' in text
        assert name in constants.ENV_VARS_TO_PROPAGATE
    from ray.train.constants import RAY_CHDIR_TO_TRIAL_DIR

    assert f'"{RAY_CHDIR_TO_TRIAL_DIR}"' in text


def test_nodes_labels_and_drains() -> None:
    from ray._private.state import state
    from ray._raylet import RAY_NODE_ID_KEY
    from ray.core.generated import autoscaler_pb2
    from ray.runtime_context import RuntimeContext

    assert RAY_NODE_ID_KEY == "ray.io/node-id"
    assert parameters(state.get_draining_nodes) == []
    assert callable(RuntimeContext.get_node_labels)
    assert autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION") == 2


class FakePilot:
    """Remembers what it is told."""

    def __init__(self, members: tuple[Member, ...] | None) -> None:
        self.members, self.calls = members, []
        self.stopping: str | None = None
        self.collateral = False

    def start_group(self) -> tuple[Member, ...] | None:
        return self.members

    resize_group = start_group

    def started(self, members: tuple[Member, ...]) -> None:
        self.calls.append(members)

    def lost(self, ranks: list[int], what: str) -> bool:
        self.calls.append(ranks)
        return True

    def may_be_collateral(self) -> bool:
        return self.collateral


MEMBERS = (
    Member(allocation="L.1", node="n", workers=2, gpus=(0, 1)),
    Member(allocation="L.4", node="m", workers=1, gpus=(3,)),
)


def test_a_group_is_pinned_to_the_allocations_it_was_decided_for() -> None:
    from ray.train import ScalingConfig
    from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision

    pilot = FakePilot(MEMBERS)
    config = ScalingConfig(num_workers=1, use_gpu=True, resources_per_worker={"GPU": 1, "CPU": 0})
    policy = internals.scaling_policy(pilot, config)  # type: ignore[arg-type]
    decision = policy.make_decision_for_non_running_worker_group()
    assert decision == ResizeDecision(num_workers=3, resources_per_worker={"GPU": 1})
    selector = policy.on_controller_start_worker_group(scaling_config=config, num_workers=3)
    assert selector == {"moorage.io/allocation": "in(L.1,L.4)"}
    assert pilot.calls == [MEMBERS]
    pilot.members = None
    assert isinstance(policy.make_decision_for_running_worker_group(None, None), NoopDecision)


def errors() -> dict[str, Any]:
    from ray.exceptions import ActorDiedError
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError, WorkerHealthCheckFailedError
    from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

    died = WorkerHealthCheckFailedError("m", failure=ActorDiedError())
    return {
        "the loop raised": WorkerGroupError("m", {0: LoopFailed("t")}),
        "a worker died": WorkerGroupError("m", {1: died}),
        "a worker died and a peer raised": WorkerGroupError("m", {0: LoopFailed("t"), 1: died}),
        "a group did not start": ControllerError(WorkerGroupStartupTimeoutError(2)),
        "a worker died at its start": ControllerError(ActorDiedError()),
        "a mistake of ours": ControllerError(KeyError("x")),
        "stopped": ControllerError(Overdue("x")),
    }


@pytest.mark.parametrize(
    ("name", "collateral", "decision", "ranks"),
    [
        ("the loop raised", False, "RAISE", None),
        ("the loop raised", True, "RETRY", []),
        ("a worker died", False, "RETRY", [1]),
        ("a worker died and a peer raised", False, "RETRY", [1]),
        ("a group did not start", False, "RETRY", []),
        ("a worker died at its start", False, "RETRY", []),
        ("a mistake of ours", False, "RAISE", None),
        ("stopped", False, "RAISE", None),
    ],
)
def test_the_users_mistake_fails_at_once_and_a_loss_does_not(
    name: str, collateral: bool, decision: str, ranks: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.train import FailureConfig

    pilot = FakePilot(None)
    pilot.collateral = collateral
    monkeypatch.setattr(internals, "current", lambda: pilot)
    policy = internals.failure_policy(FailureConfig(max_failures=0))
    assert policy.make_decision(errors()[name]).name == decision
    assert pilot.calls == ([] if ranks is None else [ranks])
    pilot.stopping = "budget"
    assert policy.make_decision(errors()[name]).name == "RAISE"


def test_the_driver_hears_the_users_words() -> None:
    assert isinstance(internals._cause(errors()["the loop raised"]), LoopFailed)
    assert isinstance(internals._cause(errors()["stopped"]), Overdue)
    error = errors()["a mistake of ours"]
    assert internals._cause(error) is error
