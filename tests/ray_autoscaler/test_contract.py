"""What we rely on in Ray 2.60 without a promise: signatures, attributes, formats. No cluster is started."""

from __future__ import annotations

import inspect
import json

import pytest
import ray
from ray.autoscaler.v2 import autoscaler as ray_autoscaler
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig, IConfigReader
from ray.autoscaler.v2.instance_manager.node_provider import CloudInstance, ICloudInstanceProvider
from ray.autoscaler.v2.instance_manager.subscribers.ray_stopper import RayStopper
from ray.autoscaler.v2.scheduler import IResourceScheduler, ResourceDemandScheduler, SchedulingReply, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.core.generated import autoscaler_pb2 as pb
from ray.core.generated.common_pb2 import LabelSelector, LabelSelectorConstraint
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind
from ray.util.placement_group import placement_group as ray_placement_group

from moorage.ray import internals
from moorage.ray.demand import Bundle, Gang, RayNode, Selector, Singles

PG = "ab" * 14 + "01000000"


def test_the_pinned_version() -> None:
    assert ray.__version__.startswith("2.60.")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (internals.Provider, ICloudInstanceProvider),
        (internals.ConfigReader, IConfigReader),
        (internals.Scheduler, IResourceScheduler),
    ],
)
def test_we_have_every_method_that_ray_calls(ours: type, theirs: type) -> None:
    for name in theirs.__abstractmethods__:  # type: ignore[attr-defined]
        want = list(inspect.signature(getattr(theirs, name)).parameters)
        assert list(inspect.signature(getattr(ours, name)).parameters) == want, name


def test_the_autoscaler_has_the_seams_that_we_override() -> None:
    init = inspect.signature(ray_autoscaler.Autoscaler.__init__).parameters
    assert {"session_name", "config_reader", "gcs_client"} <= set(init)
    hook = inspect.signature(ray_autoscaler.Autoscaler._init_cloud_instance_provider).parameters
    assert list(hook) == ["self", "config", "config_reader"]
    source = inspect.getsource(ray_autoscaler.Autoscaler)
    assert "self._scheduler = ResourceDemandScheduler(self._event_logger)" in source
    assert "scheduler=self._scheduler" in source
    assert "self._cloud_instance_provider.get_non_terminated()" in source


def test_drains_go_through_the_client_that_we_wrap() -> None:
    source = inspect.getsource(RayStopper._drain_ray_node)
    assert "accepted, reject_msg_str = gcs_client.drain_node(" in source
    for keyword in ("node_id=", "reason=", "reason_message=", "deadline_timestamp_ms="):
        assert keyword in source


def test_the_autoscaler_can_be_built_on_our_parts() -> None:
    config = internals.ConfigReader(30)
    provider = internals.Provider("head", lambda instance: None)
    made = internals._autoscaler("session_1", config, internals.Gcs(object(), lambda node: None), provider)
    assert isinstance(made._scheduler, internals.Scheduler)
    assert made._cloud_instance_provider is provider


def test_the_configuration_is_valid_and_learns_new_node_types() -> None:
    config = internals.ConfigReader(30)
    made = config.get_cached_autoscaling_config()
    assert isinstance(made, AutoscalingConfig)
    assert made.get_idle_timeout_s() == 30
    assert made.get_pending_idle_timeout_s() is None
    assert made.disable_node_updaters()
    assert made.disable_launch_config_check()
    assert set(made.get_node_type_configs()) == {"head", "moorage"}
    config.know(frozenset({"other"}))
    assert set(config.get_cached_autoscaling_config().get_node_type_configs()) == {"head", "moorage", "other"}


def test_instances_are_the_head_and_the_allocations() -> None:
    ended: list[str] = []
    provider = internals.Provider("head-0", ended.append)
    provider.instances = {"l1.1": True, "l1.2": False}
    assert provider.get_non_terminated() == {
        "head-0": CloudInstance("head-0", "head", NodeKind.HEAD, True),
        "l1.1": CloudInstance("l1.1", "moorage", NodeKind.WORKER, True),
        "l1.2": CloudInstance("l1.2", "moorage", NodeKind.WORKER, False),
    }
    provider.terminate(["head-0", "l1.1"], "request")
    assert ended == ["l1.1"]


def node(instance: str, idle_ms: int, kind: NodeKind = NodeKind.WORKER) -> AutoscalerInstance:
    head = kind == NodeKind.HEAD
    return AutoscalerInstance(
        im_instance=Instance(
            instance_id=f"im-{instance}",
            status=Instance.RAY_RUNNING,
            instance_type="head" if head else "moorage",
            node_kind=kind,
            node_id=f"node-{instance}",
        ),
        ray_node=pb.NodeState(
            node_id=instance.encode(),
            instance_id=instance,
            ray_node_type_name="head" if head else "moorage",
            total_resources={"CPU": 1.0},
            available_resources={"CPU": 1.0},
            idle_duration_ms=idle_ms,
        ),
        cloud_instance_id=instance,
    )


def gang(state: str = "PENDING", bundles: int = 2) -> pb.GangResourceRequest:
    request = pb.ResourceRequest(resources_bundle={"GPU": 2.0, "CPU": 1.0})
    constraint = LabelSelectorConstraint(label_key="moorage.io/gang", operator=1, label_values=["g1"])
    request.label_selectors.append(LabelSelector(label_constraints=[constraint]))
    made = pb.GangResourceRequest(details=f"{PG}:STRICT_SPREAD|{state}")
    made.bundle_selectors.append(pb.BundleSelector(resource_requests=[request] * bundles))
    return made


def scheduled(scheduler: internals.Scheduler, *instances: AutoscalerInstance) -> SchedulingReply:
    config = internals.ConfigReader(5).get_cached_autoscaling_config()
    return scheduler.schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=config.get_node_type_configs(),
            max_num_nodes=config.get_max_num_nodes(),
            idle_timeout_s=config.get_idle_timeout_s(),
            gang_resource_requests=[gang()],
            resource_requests=[
                pb.ResourceRequestByCount(request=pb.ResourceRequest(resources_bundle={"CPU": 1}), count=9)
            ],
            current_instances=list(instances),
        )
    )


def test_rays_own_scheduler_ends_what_is_idle_and_never_launches() -> None:
    scheduler = internals.Scheduler(ResourceDemandScheduler(None))
    reply = scheduled(scheduler, node("head", 99_000, NodeKind.HEAD), node("l1.1", 6_000), node("l1.2", 4_000))
    assert [t.instance_id for t in reply.to_terminate] == ["im-l1.1"]
    assert not reply.to_launch
    assert not reply.infeasible_gang_resource_requests


def test_a_gang_that_waits_is_not_idle_and_a_denied_one_is_shown_as_infeasible() -> None:
    scheduler = internals.Scheduler(ResourceDemandScheduler(None))
    scheduler.protected, scheduler.denied = frozenset({"l1.1"}), frozenset({PG})
    reply = scheduled(scheduler, node("l1.1", 6_000), node("l2.1", 6_000))
    assert [t.instance_id for t in reply.to_terminate] == ["im-l2.1"]
    assert [g.details for g in reply.infeasible_gang_resource_requests] == [f"{PG}:STRICT_SPREAD|PENDING"]


def test_demand_is_read_with_groups_labels_and_states() -> None:
    state = pb.ClusterResourceState()
    state.pending_gang_resource_requests.extend([gang(), gang("RESCHEDULING", bundles=1)])
    single = pb.ResourceRequestByCount(request=pb.ResourceRequest(resources_bundle={"GPU": 1.0}), count=3)
    state.pending_resource_requests.append(single)
    bundle = Bundle({"GPU": 2.0, "CPU": 1.0}, (Selector("moorage.io/gang", ("g1",)),))
    demand = internals.demand_of(state)
    assert demand.gangs == (
        Gang(PG, "STRICT_SPREAD", (bundle, bundle)),
        Gang(PG, "STRICT_SPREAD", (bundle,), rescheduling=True),
    )
    assert demand.gangs[0].job == "01000000"
    assert demand.singles == (Singles(Bundle({"GPU": 1.0}), 3),)


def test_nodes_are_read_without_the_head_and_the_dead() -> None:
    state = pb.ClusterResourceState()

    def add(instance: str, status: str, kind: str = "moorage") -> None:
        state.node_states.append(
            pb.NodeState(
                instance_id=instance,
                status=pb.NodeStatus.Value(status),
                ray_node_type_name=kind,
                idle_duration_ms=7,
            )
        )

    for instance, status in (
        ("l1.1", "RUNNING"),
        ("l1.2", "IDLE"),
        ("l1.3", "DRAINING"),
        ("l1.4", "DEAD"),
        ("", "IDLE"),
    ):
        add(instance, status)
    add("head", "IDLE", "head")
    assert internals.nodes_of(state) == (RayNode("l1.1", 7), RayNode("l1.2", 7), RayNode("l1.3", 0))


def test_only_an_accepted_drain_is_given_back() -> None:
    class Client:
        accept = False

        def drain_node(self, **options: object) -> tuple[bool, str]:
            return self.accept, ""

        def other(self) -> str:
            return "passed on"

    told: list[str] = []
    client = Client()
    gcs = internals.Gcs(client, told.append)
    options = {"reason": 1, "reason_message": "idle", "deadline_timestamp_ms": 0}
    assert gcs.drain_node(node_id="n1", **options) == (False, "")
    client.accept = True
    assert gcs.drain_node(node_id="n2", **options) == (True, "")
    assert told == ["n2"]
    assert gcs.other() == "passed on"


def test_drivers_understand_what_we_say() -> None:
    from ray._private.event.event_logger import filter_event_by_level, parse_event

    said: list[dict[str, object]] = []

    class Client:
        def publish_logs(self, data: dict[str, object]) -> None:
            said.append(data)

    speaker = object.__new__(internals.Autoscaling)
    speaker._address, speaker._gcs = "", internals.Gcs(Client(), lambda node: None)
    speaker.say("a sentence")
    (line,) = said[0]["lines"]  # type: ignore[misc]
    event = parse_event(line)
    assert json.loads(line)["message"] == event.message == "a sentence"
    assert not filter_event_by_level(event, "INFO")
    assert {"ip", "pid", "job", "is_err", "lines", "actor_name", "task_name"} == set(said[0])


def test_the_placement_group_that_the_helper_calls() -> None:
    names = inspect.signature(ray_placement_group).parameters
    assert {"bundles", "strategy", "name", "lifetime", "bundle_label_selector"} <= set(names)
