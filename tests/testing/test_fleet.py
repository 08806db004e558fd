"""The fixtures that authors of DAGs use: a real broker, real agents with fake GPUs, a cloud that gives notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moorage.agent import processes
from moorage.api.errors import Invalid
from moorage.api.ids import new_id
from moorage.api.values import LeaseView, Submission
from moorage.core.job import Job, JobKind
from moorage.core.lease import LeaseState, Outcome
from moorage.core.request import Request
from moorage.ray import cluster
from moorage.testing.fleet import FakeFleet, FakeNode
from moorage.testing.metadata import MetadataServer
from moorage.testing.scripted import wait_until
from moorage.testing.served import ServedBroker

pytestmark = [pytest.mark.system, pytest.mark.path]

StartFleet = Callable[..., FakeFleet]


def submit(broker: ServedBroker, *words: str, gpus: int = 1) -> str:
    submission = Submission(
        owner={"test": words[-1][:60]},
        request=Request(gpus_per_worker=gpus),
        job=Job(entrypoint=words),
        client_id=new_id(),
        team="research",
    )
    return broker.client.submit(submission).lease.id


def ended(broker: ServedBroker, lease: str, timeout: float = 30) -> LeaseView:
    wait_until(lambda: broker.client.get(lease).lease.state is LeaseState.ENDED, timeout, f"the end of {lease}")
    return broker.client.get(lease)


def test_a_job_runs_on_a_fake_fleet(broker: ServedBroker, fake_fleet: StartFleet) -> None:
    fake_fleet([FakeNode(name="n1", gpus=2, labels={"moorage.io/rack": "r1"}), FakeNode(name="n2", gpus=4)])
    script = "import os; print('devices', os.environ['CUDA_VISIBLE_DEVICES'])"
    lease = submit(broker, "python", "-c", script, gpus=4)
    view = ended(broker, lease)
    assert (view.lease.outcome, view.lease.reason) == (Outcome.SUCCEEDED, "finished")
    wait_until(lambda: "devices 0,1,2,3" in broker.client.logs(lease).text, 10, "the log")
    wait_until(lambda: not any(use.lease for node in broker.client.fleet().nodes for use in node.gpus), 10, "free GPUs")


def test_a_failing_job_says_why(broker: ServedBroker, fake_fleet: StartFleet) -> None:
    fake_fleet([FakeNode(name="n1", gpus=1)])
    view = ended(broker, submit(broker, "python", "-c", "raise SystemExit('no data found')"))
    assert view.lease.outcome is Outcome.FAILED
    assert "no data found" in view.lease.reason


def test_an_agent_is_killed_and_its_job_goes_on(broker: ServedBroker, fake_fleet: StartFleet) -> None:
    fleet = fake_fleet([FakeNode(name="n1", gpus=1)], processes=True)
    lease = submit(broker, "python", "-c", "import time\nprint('up', flush=True)\ntime.sleep(4)\nprint('fine')")
    wait_until(lambda: "up" in broker.client.logs(lease).text, 20, "the job's start")
    fleet.kill("n1")
    fleet.start("n1")
    view = ended(broker, lease)
    assert (view.lease.outcome, view.lease.epoch) == (Outcome.SUCCEEDED, 1)


def test_a_release_ends_the_job(broker: ServedBroker, fake_fleet: StartFleet) -> None:
    fake_fleet([FakeNode(name="n1", gpus=1)])
    lease = submit(broker, "python", "-c", "import time\nprint('up', flush=True)\ntime.sleep(300)")
    wait_until(lambda: "up" in broker.client.logs(lease).text, 20, "the job's start")
    broker.client.release(lease, "enough", new_id(), force=True)
    assert ended(broker, lease).lease.outcome is Outcome.STOPPED


def test_a_notice_reaches_the_broker(
    broker: ServedBroker, fake_fleet: StartFleet, metadata_server: Callable[..., MetadataServer]
) -> None:
    cloud = metadata_server(["n1"])
    fake_fleet([FakeNode(name="n1", gpus=1, imds_url=cloud.url("n1"))])
    deadline = cloud.notice(seconds=60, node="n1")
    wait_until(lambda: broker.client.fleet().nodes[0].node.notice_deadline == deadline, 10, "the notice")
    cloud.cancel("n1")
    wait_until(lambda: broker.client.fleet().nodes[0].node.notice_deadline is None, 10, "its cancellation")


def test_a_thread_cannot_be_killed(broker: ServedBroker, fake_fleet: StartFleet) -> None:
    fleet = fake_fleet([FakeNode(name="n1")])
    with pytest.raises(Invalid, match="processes=True"):
        fleet.kill("n1")
    with pytest.raises(Invalid, match="name one of: n1"):
        fleet.start("n2")


DRIVER = """
import ray
ray.init(logging_level="ERROR")
print("gpus", int(ray.cluster_resources()["GPU"]), flush=True)
"""


@pytest.mark.timeout(200)
def test_a_ray_lease_on_a_fake_fleet(broker: ServedBroker, fake_fleet: StartFleet) -> None:
    fleet = fake_fleet([FakeNode(name="n1", gpus=1), FakeNode(name="n2", gpus=2)])
    submission = Submission(
        owner={"test": "ray"},
        request=Request(workers=(2, 2)),
        job=Job(kind=JobKind.RAY, entrypoint=("python", "-c", DRIVER)),
        client_id=new_id(),
        team="research",
    )
    lease = broker.client.submit(submission).lease.id
    view = ended(broker, lease, 150)
    assert (view.lease.outcome, view.lease.epoch) == (Outcome.SUCCEEDED, 1), view.lease.reason
    wait_until(lambda: "gpus 2" in broker.client.logs(lease).text, 10, "the log")
    seen = processes.scan()
    assert [a for name in fleet.nodes for a in processes.allocations(seen, str(fleet.folder / name))] == []
    assert not cluster.cluster_folder(lease, 1).exists()
