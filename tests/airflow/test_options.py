"""Arguments, as people and templates write them, become a request, or one sentence that names field, value and fix."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from moorage.airflow import options
from moorage.core.invalid import Invalid
from moorage.core.request import CapacityType, Topology

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

ACCEPTED = [
    # (option, as written, as asked)
    ("workers", 4, (4, 4)),
    ("workers", (1, 4), (1, 4)),
    ("workers", [1, 4], (1, 4)),
    ("workers", "4", (4, 4)),
    ("workers", "1-4", (1, 4)),
    ("workers", "(1, 4)", (1, 4)),
    ("workers", "[1, 4]", (1, 4)),
    ("gpus_per_worker", "2", 2),
    ("budget_usd", 1.1, Decimal("1.1")),
    ("budget_usd", "0.50", Decimal("0.50")),
    ("budget_usd", "None", None),
    ("budget_usd", "", None),
    ("capacity", "spot", CapacityType.SPOT),
    ("topology", {"preferred": "rack"}, Topology(preferred="rack")),
    ("topology", "{'required': 'host'}", Topology(required="host")),
    ("topology", '{"required": "host", "preferred": null}', Topology(required="host")),
    ("models", ["H100", "A100"], ("H100", "A100")),
    ("models", "H100, A100", ("H100", "A100")),
    ("models", "['H100']", ("H100",)),
    ("models", None, ()),
    ("deadline", timedelta(hours=2), NOW + timedelta(hours=2)),
    ("deadline", "2026-11-30T20:00:00+00:00", datetime(2026, 11, 30, 20, tzinfo=UTC)),
    ("deadline", datetime(2026, 11, 30, 20, tzinfo=UTC), datetime(2026, 11, 30, 20, tzinfo=UTC)),
    ("labels", "{'gpu': 'new'}", {"gpu": "new"}),
    ("priority", "7", 7),
]

REFUSED = [
    ("workers", (4, 2), "did you mean (2, 4)?"),
    ("workers", 0, "min must be at least 1"),
    ("workers", "many", "give one number, or (min, max)"),
    ("workers", (1, 2, 3), "give one number, or (min, max)"),
    ("workers", True, "give one number, or (min, max)"),
    ("gpus_per_worker", 0, "give each worker at least 1 GPU"),
    ("gpus_per_worker", "two", "integer"),
    ("budget_usd", -1, "give a positive amount of dollars"),
    ("budget_usd", "free", "decimal"),
    ("capacity", "spott", "'spot'"),
    ("topology", {"prefered": "rack"}, "unknown; possible: required, preferred"),
    ("topology", "rack", "give a mapping of strings"),
    ("models", 5, "give a list of names"),
    ("labels", {"gpu": 4}, "must be a string"),
    ("deadline", "tomorrow", "give ISO 8601"),
    ("deadline", "2026-11-30T20:00:00", "time zone"),
    ("deadline", datetime(2026, 11, 30), "time zone"),  # noqa: DTZ001
    ("deadline", timedelta(hours=-1), "it is in the past"),
    ("deadline", NOW, "it is in the past"),
]


@pytest.mark.parametrize(("name", "written", "asked"), ACCEPTED)
def test_accepted(name: str, written: object, asked: object) -> None:
    assert getattr(options.request({name: written}, NOW), name) == asked


@pytest.mark.parametrize(("name", "written", "fix"), REFUSED)
def test_refused(name: str, written: object, fix: str) -> None:
    with pytest.raises(Invalid, match="^" + name) as refused:
        options.refuse_past(options.request({name: written}, NOW), NOW)
    assert fix in str(refused.value)


JOB_REFUSED = [
    ({"env": {"LR": 0.1}}, "env.LR=0.1: must be a string"),
    ({"secrets": ["KEY"]}, "secrets=['KEY']: give a mapping of strings"),
    ({"max_retries": "often"}, "max_retries='often': give a whole number"),
    ({"storage": 3}, "storage=3: must be a string"),
]


@pytest.mark.parametrize(("written", "sentence"), JOB_REFUSED)
def test_job_refused(written: dict[str, object], sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        options.job(written)
    assert str(refused.value) == sentence


def test_job_options_that_were_not_given_are_left_out() -> None:
    assert options.job({"env": None, "secrets": "None", "storage": "", "max_retries": "2"}) == {"max_retries": 2}


def test_earliest() -> None:
    assert options.earliest(None, NOW, NOW - timedelta(1)) == NOW - timedelta(1)
    assert options.earliest(None, None) is None
