"""Every command once, as a user runs it, on a broker and two nodes of four fake GPUs."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from cli_terminal import Site

from moorage.agent.names import ALLOCATION_MARK
from moorage.api.auth import Role
from moorage.client import Client
from moorage.core.lease import LeaseState, Outcome
from moorage.core.policy import Policy

#: Real waits: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def tidy(site: Site) -> Iterator[None]:
    """All GPUs are free before and after."""
    yield
    for view in site.client.find({}, live=True):
        site.client.release(view.lease.id, "a test is over", f"tidy-{view.lease.id}", force=True)
    eventually(lambda: not site.client.find({}, live=True), "every lease ends")


def eventually(true: Callable[[], object], what: str, limit_s: float = 20.0) -> None:
    until = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.05)


def detached(site: Site, *words: str) -> str:
    """The id of a lease that `moorage run --detach` made."""
    said = site.moorage("run", "--detach", *words)
    assert said.status == 0, said.err
    return said.out.strip()


def state(client: Client, lease: str) -> LeaseState:
    return client.get(lease).lease.state


def runs(site: Site, lease: str) -> None:
    eventually(lambda: state(site.client, lease) is LeaseState.RUNNING, "it runs")


def processes(lease: str) -> list[psutil.Process]:
    """Living processes that an agent started for the lease."""
    found = []
    for process in psutil.process_iter(["status", "environ"]):
        mark = (process.info["environ"] or {}).get(ALLOCATION_MARK, "")
        if mark.startswith(lease) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


# --- the command itself


def test_version_and_help(site: Site) -> None:
    assert site.moorage("--version").out.startswith("moorage 0.")
    assert site.moorage("-h").status == 0
    bare = site.moorage("token")
    assert (bare.status, "create" in bare.out + bare.err) == (2, True)


def test_status(site: Site) -> None:
    said = site.moorage("status")
    assert said.status == 0
    assert "n1    r1     default (on-demand)     0.00  ready      ....\n" in said.out
    assert "0 of 8 GPUs held · 0 leases · 0 queued" in said.out
    assert [node["node"]["id"] for node in site.moorage("status", "--json").json["nodes"]] == ["n1", "n2"]


# --- run


def test_run_shows_what_the_job_prints_and_nothing_else(site: Site) -> None:
    said = site.moorage("run", "--gpus", "2", "--env", "WHO=me", "sh", "-c", "echo $WHO has $CUDA_VISIBLE_DEVICES")
    assert (said.status, said.out) == (0, "me has 0,1\n")
    first, last = said.err.splitlines()
    assert first.startswith("lease 0")
    assert first.endswith(" is queued")
    assert last == "succeeded: finished · $0.0000"


def test_run_is_over_as_soon_as_the_job_is(site: Site) -> None:
    """Also a job that prints nothing, which no log wakes."""
    began = time.monotonic()
    assert site.moorage("run", "true").status == 0
    assert time.monotonic() - began < 5


def test_run_ships_a_folder(site: Site) -> None:
    (site.folder / "job").mkdir()
    (site.folder / "job" / "train.py").write_text("import sys; print('trained', sys.argv[1])")
    (site.folder / "job" / ".secret").write_text("stays here")
    said = site.moorage("run", "--code", "job", "--", "python", "-u", "train.py", "--hard")
    assert (said.status, said.out) == (0, "trained --hard\n")
    assert site.moorage("run", "--code", "job", "ls", "-A").out == "train.py\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["sh", "-c", "echo it is broken; exit 3"], "attempt 1 exited 3; last line: it is broken"),
        (["no-such-program"], "attempt 1 found no such program; last line: cannot start no-such-program: No such"),
        (
            ["--done-when", "marker", "echo", "almost"],
            "attempt 1 exited 0 without finishing: no completion marker; last",
        ),
    ],
)
def test_a_job_that_fails_says_how(site: Site, words: list[str], reason: str) -> None:
    said = site.moorage("run", *words)
    assert said.status == 1
    assert said.err.splitlines()[-1].startswith(f"failed: {reason}"), said.err


def test_a_run_that_has_to_wait_says_why(site: Site) -> None:
    busy = [detached(site, "--gpus", "4", "sleep", "60") for _ in range(2)]
    for lease in busy:
        runs(site, lease)
    command = site.start("run", "--gpus", "4", "echo", "at last")
    try:
        eventually(lambda: len(site.moorage("queue", "--json").json) == 1, "it waits")
        (waiting,) = site.moorage("queue", "--json").json
        why = "1 x 4 GPUs: no host has room for a worker now; 2 nodes are busy"
        eventually(lambda: why in site.moorage("queue").out, "the queue says why")
        assert site.moorage("explain", waiting["lease"]["id"]).out == f"{why}\n"
        told = site.moorage("explain", "--json", waiting["lease"]["id"]).json
        assert (told["fits"], told["ever"], told["sentence"]) == (False, True, why)
        assert site.moorage("release", busy[0]).status == 0
        out, err = command.communicate(timeout=30)
    finally:
        command.kill()
    assert (command.returncode, out) == (0, "at last\n"), err
    assert f"waits: {why}\n" in err


@pytest.mark.parametrize(
    ("number", "waits"),
    [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)],
)
def test_ctrl_c_releases(site: Site, number: signal.Signals, waits: bool) -> None:
    before = {view.lease.id for view in site.client.find({})}
    blocked = [detached(site, "--gpus", "4", "sleep", "60") for _ in range(2)] if waits else []
    command = site.start("run", "--gpus", "4", "sleep", "61")
    wanted = LeaseState.QUEUED if waits else LeaseState.RUNNING

    def mine() -> list[str]:
        views = site.client.find({}, live=True)
        return [v.lease.id for v in views if v.lease.id not in {*before, *blocked} and v.lease.state is wanted]

    try:
        eventually(mine, f"it is {wanted}")
        (lease,) = mine()
        command.send_signal(number)
        out, err = command.communicate(timeout=20)
    finally:
        command.kill()
    assert (command.returncode, out) == (130, "")
    assert err.endswith(f"lease {lease} is released\n"), err
    eventually(lambda: state(site.client, lease) is LeaseState.ENDED, "it ends")
    ended = site.client.get(lease).lease
    assert (ended.outcome, ended.reason) == (Outcome.STOPPED, "interrupted at the terminal")
    assert processes(lease) == []


# --- leases


def test_a_detached_run_and_its_lease(site: Site) -> None:
    lease = detached(site, "sh", "-c", "echo begun; sleep 60")
    runs(site, lease)
    follows = site.start("logs", "-f", lease[:18])
    try:
        eventually(lambda: site.moorage("logs", lease).out == "begun\n", "its log")
        assert f"{lease[:13]}  " in site.moorage("leases").out
        (view,) = site.moorage("leases", "--json").json
        assert (view["lease"]["id"], view["lease"]["state"]) == (lease, "running")
        assert site.moorage("explain", lease).out.startswith("attempt 1 is running with 1 worker on n1: granted")
        assert "1 of 8 GPUs held · 1 lease · 0 queued" in site.moorage("status").out
        assert site.moorage("priority", lease, "7").out == f"{lease} has priority 7.\n"
        assert site.client.get(lease).lease.request.priority == 7
        said = site.moorage("release", lease, "--reason", "enough")
        assert said.out == f"{lease} is stopping: enough\n"
        out, _ = follows.communicate(timeout=30)
    finally:
        follows.kill()
    assert (follows.returncode, out) == (0, "begun\n")
    eventually(lambda: state(site.client, lease) is LeaseState.ENDED, "it ends")
    assert processes(lease) == []
    assert site.moorage("leases").out == "No live leases; `--all` shows ended ones.\n"
    assert lease in {view["lease"]["id"] for view in site.moorage("leases", "--all", "--json").json}
    assert site.moorage("release", lease).out == f"{lease} is ended: enough\n"
    assert site.moorage("explain", lease).out == "stopped: enough\n"
    assert site.moorage("queue").out == "Nobody waits.\n"


# --- place


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fits.toml", "workers = 2\ngpus_per_worker = 4\n[topology]\nrequired = 'rack'\n"),
        ("fits.json", '{"workers": [2, 2], "gpus_per_worker": 4, "topology": {"required": "rack"}}'),
        ("fits.yaml", "workers: 2..2\ngpus_per_worker: 4\ntopology: {required: rack}\n"),
        ("fits.yml", "{workers: [2, 3], gpus_per_worker: 4, topology: {required: rack}}"),
    ],
)
def test_place(site: Site, name: str, text: str) -> None:
    (site.folder / name).write_text(text)
    said = site.moorage("place", name)
    assert (said.status, said.out.splitlines()[0]) == (0, "2 x 4 GPUs in one rack: fits now on n1, n2 in rack r1")
    told = site.moorage("place", "--json", name).json
    assert told["placement"] == {"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3]}
    assert not site.client.find({}, live=True)


def test_place_what_never_fits(site: Site) -> None:
    (site.folder / "large.toml").write_text("gpus_per_worker = 9")
    said = site.moorage("place", "large.toml")
    assert said.status == 1
    assert said.out.startswith("1 x 9 GPUs: can never fit: "), said.out


# --- operators


def test_nodes(site: Site) -> None:
    def condition() -> str:
        return next(view.condition for view in site.client.fleet().nodes if view.node.id == "n2")

    assert site.moorage("drain", "n2").out == "n2 drains; `moorage uncordon n2` brings it back.\n"
    assert condition() == "draining"
    assert site.moorage("uncordon", "n2").out == "n2 takes grants.\n"
    assert condition() == "ready"
    assert site.moorage("cordon", "n2").out == "n2 is cordoned.\n"
    assert condition() == "cordoned"
    assert site.moorage("uncordon", "n2").status == 0
    assert site.moorage("lose", "n2").out == "n2 is lost; it is used again after a clean report.\n"
    eventually(lambda: condition() == "ready", "its next report is clean")


def test_freeze(site: Site) -> None:
    assert site.moorage("freeze").out == "Disruption is frozen; `moorage unfreeze` ends that.\n"
    assert "disruption is frozen" in site.moorage("status").out
    assert site.moorage("unfreeze").out == "Disruption is allowed.\n"
    assert not site.client.fleet().frozen


def test_config(site: Site) -> None:
    (site.folder / "policy.toml").write_text("[[pools]]\nname = 'lab'\nprice = '1.25'\n")
    revision = site.client.policy_history()[-1].revision + 1
    assert site.moorage("config", "apply", "policy.toml").out == f"policy revision {revision} is in force.\n"
    try:
        assert site.moorage("config", "show").json["pools"][0]["price"] == "1.25"
        assert site.moorage("config", "history").out.splitlines()[-1].split()[0] == str(revision)
        assert site.moorage("config", "history", "--json").json[-1]["revision"] == revision
        assert "lab (on-demand)     1.25  ready" in site.moorage("status").out
    finally:
        site.client.apply_policy(Policy(), f"tidy-{revision}")


def test_tokens(site: Site) -> None:
    made = site.moorage("token", "create", "ana", "--role", "submitter", "--team", "red")
    secret = made.out.strip()
    assert (made.status, made.err, len(secret.split())) == (0, "", 1)
    assert site.moorage("leases", MOORAGE_TOKEN=secret).status == 0
    (view,) = [view for view in site.moorage("token", "list", "--json").json if view["name"] == "ana"]
    listed = site.moorage("token", "list").out
    assert (view["role"], view["team"], view["id"] in listed) == ("submitter", "red", True)
    assert secret not in listed + json.dumps(view)
    assert site.moorage("token", "revoke", view["id"]).out == f"{view['id']} is revoked.\n"
    assert site.moorage("leases", MOORAGE_TOKEN=secret).status == 2


# --- servers: `serve` is in test_serve.py


def test_an_agent_joins_and_ends(site: Site) -> None:
    secret = site.client.make_token("agent-n3", Role.AGENT, node="n3")
    (site.scratch / "n3.token").write_text(secret)
    where = ("--token-file", site.scratch / "n3.token", "--state-dir", site.scratch / "n3")
    command = site.start("agent", "join", site.broker.url, *where, "--node", "n3", "--rack", "r2", "--fake-gpus", "2")
    try:
        eventually(lambda: "n3    r2 " in site.moorage("status").out, "it has joined")
        again = site.moorage("agent", "join", site.broker.url, *where, "--node", "n3", "--fake-gpus", "2")
        assert again.status == 2
        assert "another agent uses it; give each agent one of its own" in again.err
        command.terminate()
        said = command.communicate(timeout=20)[1]
        assert (command.returncode, secret in said) == (0, False)
    finally:
        command.kill()
        site.client.lose("n3", "tidy-n3")


def test_a_pipe_that_closes_is_no_mistake(site: Site) -> None:
    command = site.start("status", "--json")
    assert command.stdout is not None
    command.stdout.close()
    assert command.wait(timeout=20) in (0, 1)
    assert command.stderr is not None
    assert "Traceback" not in command.stderr.read()
