"""What Airflow reads of us: provider info, plugin, decorator, and the example DAGs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import airflow
import jsonschema
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk._shared.plugins_manager import is_valid_plugin

from moorage.airflow.get_provider_info import get_provider_info

ROOT = Path(__file__).parents[2]


def test_provider_info_follows_airflows_schema() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def named() -> list[str]:
    info: dict = get_provider_info()  # type: ignore[type-arg]
    modules = [
        name for kind in ("operators", "hooks", "triggers") for row in info[kind] for name in row["python-modules"]
    ]
    classes = [row["class-name"] for row in info["task-decorators"]] + info["extra-links"]
    return [*modules, *classes, *(row["hook-class-name"] for row in info["connection-types"])]


@pytest.mark.parametrize("name", named())
def test_everything_it_names_exists(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)


def test_every_public_name_can_be_imported() -> None:
    import moorage.airflow

    for name in moorage.airflow.__all__:
        assert getattr(moorage.airflow, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        moorage.airflow.Nothing  # noqa: B018


def test_plugin() -> None:
    from moorage.airflow.plugin import MooragePlugin

    assert is_valid_plugin(MooragePlugin)
    view = MooragePlugin().external_views[0]
    assert (view["name"], view["url_route"], view["href"]) == ("GPU fleet", "moorage", "/moorage/")


def test_addresses_follow_base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    from moorage.airflow import links

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team")
    assert links.lease_url(None) == "/team/moorage/"
    assert links.lease_url("abc") == "/team/moorage/leases/abc"


def test_example_dags_parse() -> None:
    bag = DagBag(str(ROOT / "dags"), safe_mode=False, load_op_links=False)
    assert bag.import_errors == {}
    dag = bag.dags["train_digits"]
    assert set(dag.task_ids) == {"prepare", "train", "evaluate"}
    assert dag.task_dict["train"].upstream_task_ids == {"prepare"}
    assert dag.task_dict["evaluate"].upstream_task_ids == {"prepare", "train"}
    assert [asset.uri for asset in dag.task_dict["evaluate"].outlets] == ["moorage://models/digits"]


MAPPED = """
from airflow.sdk import DAG, task
from moorage.airflow import GpuLeaseOperator, GpuTrainOperator

with DAG("mapped", schedule=None, default_args={"capacity": "spot", "moorage_conn_id": "other"}):
    GpuTrainOperator.partial(task_id="train", script="x.py", workers=(1, 2)).expand(budget_usd=[1, 2])

    @task.gpu(gpus=2)
    def double(value, gpu=None):
        return 2 * value

    double.expand(value=[1, 2, 3])
    double.override(task_id="once")(4)
    lease = GpuLeaseOperator(task_id="lease", stop_after="2026-12-01T00:00:00+00:00")
    lease >> double.override(task_id="between")(5) >> lease.teardown()
"""


def test_mapping_default_args_and_teardown(tmp_path: Path) -> None:
    (tmp_path / "mapped.py").write_text(MAPPED)
    bag = DagBag(str(tmp_path), safe_mode=False, load_op_links=False)
    assert bag.import_errors == {}
    tasks = bag.dags["mapped"].task_dict
    assert tasks["train"].is_mapped
    assert tasks["double"].is_mapped
    assert (tasks["once"].capacity, tasks["once"].gpus, tasks["once"].moorage_conn_id) == ("spot", 2, "other")
    assert tasks["lease_release"].is_teardown
    assert tasks["lease"].is_setup
