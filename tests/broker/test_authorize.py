"""Each method with each role: who gets through, and who is refused before anything happens."""

from __future__ import annotations

import inspect
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from worlds import InProcess

from moorage.api.auth import Principal, Role
from moorage.api.errors import Conflict, Denied, Invalid, NotFound
from moorage.api.protocols import Api
from moorage.api.values import NodeReport, Submission
from moorage.broker.authorize import TABLE
from moorage.core.job import Job, Phase, Progress
from moorage.core.policy import Policy
from moorage.core.request import Request

V, S, OP, A, T = Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.AGENT, Role.TRAINER
#: Method -> roles that may call it: written here again on purpose.
BY_ROLES = {
    frozenset({V, S, OP}): "get find logs events ledger explain what_if policy",
    frozenset({S, OP}): "put_code submit run watch unwatch resize release give_back note",
    frozenset({S, OP, A}): "get_code",
    frozenset({T}): "renew",
    frozenset({A}): "report orders put_logs",
    frozenset({V, OP}): "fleet policy_history",
    frozenset({OP}): "cordon drain lose priority freeze apply_policy make_token tokens revoke_token",
}
EXPECTED = {method: roles for roles, methods in BY_ROLES.items() for method in methods.split()}
SAMPLES: dict[str, Any] = {
    "code": b"x",
    "digest": "0" * 64,
    "submission": Submission(owner={"a": "b"}, request=Request(), job=Job(entrypoint=("x",)), client_id="c"),
    "job": Job(entrypoint=("x",)),
    "client_id": "c",
    "owner": {},
    "watcher": "w",
    "workers": (1, 1),
    "reason": "r",
    "allocations": (),
    "notes": {"a": "b"},
    "request": Request(),
    "progress": Progress(phase=Phase.TRAINING),
    "report": NodeReport(node="n1", incarnation="1", version="0", gpus=(), cpus=1, memory=1, labels={}),
    "node": "n1",
    "since": 0,
    "timeout": 0,
    "epoch": 1,
    "offset": 0,
    "text": b"",
    "on": True,
    "priority": 1,
    "policy": Policy(),
    "name": "n",
    "role": Role.VIEWER,
    "token_id": "t",
}


def methods_of(api: type) -> set[str]:
    return {name for name, value in inspect.getmembers(api, inspect.isfunction) if not name.startswith("_")}


def test_the_table_has_every_method_of_the_api() -> None:
    assert set(TABLE) == methods_of(Api) == set(EXPECTED)


@pytest.mark.parametrize("method", sorted(EXPECTED))
def test_roles(in_memory: InProcess, method: str) -> None:
    agent = in_memory.agent("n1")
    lease = in_memory.submit().lease.id
    in_memory.work(agent)
    parameters = inspect.signature(getattr(Api, method)).parameters.values()
    samples = {**SAMPLES, "lease": lease}
    arguments = {p.name: samples[p.name] for p in parameters if p.default is p.empty and p.name != "self"}
    for role in sorted(Role, key=lambda role: role in EXPECTED[method]):
        scope = {S: {"team": "red"}, A: {"node": "n1"}, T: {"lease": lease, "epoch": 1}}.get(role, {})
        call = getattr(in_memory.api_for(Principal(name="p", role=role, **scope)), method)
        if role not in EXPECTED[method]:
            with pytest.raises(Denied, match=f"p is {role}: {method} is for "):
                call(**arguments)
            continue
        # Samples may still be refused for what they say.
        with suppress(Invalid, NotFound, Conflict):
            call(**arguments)


@pytest.mark.parametrize("method", [name for name, rule in TABLE.items() if S in rule.roles and rule.scope == "lease"])
def test_a_submitter_touches_only_its_own_team(in_memory: InProcess, method: str) -> None:
    in_memory.agent("n1")
    lease = in_memory.submit().lease.id
    stranger = in_memory.api_for(Principal(name="tom", role=S, team="blue"))
    parameters = inspect.signature(getattr(Api, method)).parameters.values()
    arguments = {
        p.name: SAMPLES[p.name] for p in parameters if p.default is p.empty and p.name not in ("self", "lease")
    }
    with pytest.raises(Denied):
        getattr(stranger, method)(**arguments, lease=lease)


def test_a_submitter_sees_only_its_teams_events(in_memory: InProcess) -> None:
    in_memory.agent("n1")
    in_memory.submit()
    assert {e.team for e in in_memory.owner.events()} == {"red"}
    assert not list(in_memory.api_for(Principal(name="tom", role=S, team="blue")).events())


def test_an_agent_speaks_for_its_node_only(in_memory: InProcess) -> None:
    api = in_memory.api_for(Principal(name="a", role=A, node="n2"))
    with pytest.raises(Denied, match="speaks for node n2"):
        api.report(SAMPLES["report"])
    with pytest.raises(Denied):
        api.put_logs("n1", "x", 1, 0, b"")


def test_a_trainer_renews_its_own_attempt_only(in_memory: InProcess) -> None:
    agent = in_memory.agent("n1")
    lease = in_memory.submit().lease.id
    in_memory.work(agent)
    token = agent.orders.orders[0].env["MOORAGE_TOKEN"]
    mine = in_memory.broker.authenticate(token)
    assert (mine.role, mine.lease, mine.epoch) == (T, lease, 1)
    in_memory.api_for(mine).renew(lease, 1, SAMPLES["progress"])
    with pytest.raises(Denied):
        in_memory.api_for(mine).renew(lease, 2, SAMPLES["progress"])


@pytest.mark.parametrize("secret", ["", "x", "mtr_", "mtr_a.1.", "mtr_a.x.y", "mtr_a.-1.y", "moo_x"])
def test_a_wrong_secret_is_refused(in_memory: InProcess, secret: str) -> None:
    with pytest.raises(Denied):
        in_memory.broker.authenticate(secret)


def test_another_epochs_signature_is_refused(in_memory: InProcess) -> None:
    agent = in_memory.agent("n1")
    in_memory.submit()
    in_memory.work(agent)
    token = agent.orders.orders[0].env["MOORAGE_TOKEN"]
    with pytest.raises(Denied):
        in_memory.broker.authenticate(token.replace(".1.", ".2."))


def test_the_first_token_is_made_once_and_survives(on_disk: InProcess) -> None:
    secret = on_disk.broker.first_token()
    assert secret
    assert on_disk.broker.first_token() is None
    on_disk.restart()
    assert on_disk.broker.authenticate(secret).role is OP
    assert secret.encode() not in Path(on_disk.url.removeprefix("sqlite:///")).read_bytes()


def test_a_revoked_token_is_refused(in_memory: InProcess) -> None:
    secret = in_memory.operator.make_token("v", Role.VIEWER)
    assert in_memory.broker.authenticate(secret).name == "v"
    (token,) = in_memory.operator.tokens()
    in_memory.operator.revoke_token(token.id)
    with pytest.raises(Denied):
        in_memory.broker.authenticate(secret)
    assert in_memory.operator.tokens()[0].revoked_at is not None


def test_a_joining_token_belongs_to_the_first_node(in_memory: InProcess) -> None:
    secret = in_memory.operator.make_token("join", Role.AGENT)
    report = SAMPLES["report"]
    in_memory.api_for(in_memory.broker.authenticate(secret)).report(report)
    assert in_memory.broker.authenticate(secret).node == "n1"
    assert [t.node for t in in_memory.operator.tokens()] == ["n1"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": "", "role": V}, "name"),
        ({"name": "x", "role": T}, "role"),
        ({"name": "x", "role": S}, "team"),
        ({"name": "x", "role": V, "team": "red"}, "team"),
        ({"name": "x", "role": OP, "node": "n1"}, "node"),
    ],
)
def test_tokens_that_make_no_sense(in_memory: InProcess, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}="):
        in_memory.operator.make_token(**arguments)


def test_an_operator_sees_no_method_outside_the_table(in_memory: InProcess) -> None:
    with pytest.raises(AttributeError):
        in_memory.operator.drop_database()  # type: ignore[attr-defined]
