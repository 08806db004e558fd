"""The route table: what goes out comes in, whatever is in it."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.errors import Invalid
from moorage.api.routes import BY_METHOD, ROUTES, Route
from moorage.api.versions import work_together
from moorage.core.job import Job, Phase, Progress

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def carried(method: str, **arguments: object) -> dict[str, object]:
    """The arguments as the server has them."""
    route = BY_METHOD[method]
    out = route.outgoing(arguments)
    want, have = route.path.split("/"), out.path.split("/")
    assert len(want) == len(have)
    path = {w[1:-1]: unquote(h) for w, h in zip(want, have, strict=True) if w.startswith("{")}
    return route.incoming(path, out.query, out.content or b"")


@given(owner=st.dictionaries(TEXT, TEXT), live=st.booleans(), limit=st.integers(0, 10**6))
def test_find(owner: dict[str, str], live: bool, limit: int) -> None:
    assert carried("find", owner=owner, live=live, limit=limit) == {"owner": owner, "live": live, "limit": limit}


@given(lease=TEXT.filter(bool), watcher=TEXT, since=st.integers(0), timeout=st.floats(0, 1e6))
def test_watch(lease: str, watcher: str, since: int, timeout: float) -> None:
    sent = {"lease": lease, "watcher": watcher, "since": since, "timeout": timeout}
    assert carried("watch", **sent) == sent


@given(
    loss=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    metrics=st.dictionaries(TEXT, st.integers().map(float)),
)
def test_renew(loss: float | None, metrics: dict[str, float]) -> None:
    progress = Progress(phase=Phase.TRAINING, loss=loss, metrics=metrics)
    assert carried("renew", lease="l", epoch=3, progress=progress)["progress"] == progress


@given(text=st.binary(max_size=200))
def test_put_logs(text: bytes) -> None:
    sent = {"node": "n", "lease": "l", "epoch": 1, "offset": 7, "text": text}
    assert carried("put_logs", **sent) == sent


def test_defaults_are_the_protocols() -> None:
    assert carried("release", lease="l", reason="r", client_id="c")["force"] is False
    assert carried("events") == {}
    assert carried("events", lease=None, since=4) == {"since": 4}


def test_every_argument_has_one_place() -> None:
    for route in ROUTES:
        places = [*route.in_path, *route.in_query, *route.in_object, *([route.body] if route.body else [])]
        assert sorted(places) == sorted(route.kinds), route.method


def test_no_two_calls_share_a_place() -> None:
    assert len({(route.verb, route.path) for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize(
    ("method", "query", "content", "field"),
    [
        ("find", {}, b"", "owner"),
        ("find", {"owner": "x"}, b"", "owner"),
        ("orders", {"since": "soon", "timeout": "1"}, b"", "since"),
        ("run", {}, b'{"client_id": "c"}', "job"),
        ("run", {}, b'{"client_id": "c", "job": {}}', "job.entrypoint"),
        ("run", {}, b"nonsense", "body"),
        ("resize", {}, b'{"client_id": "c", "workers": [1]}', "workers.1"),
    ],
)
def test_what_is_wrong_is_named(method: str, query: dict[str, str], content: bytes, field: str) -> None:
    route: Route = BY_METHOD[method]
    path = dict.fromkeys(route.in_path, "x")
    with pytest.raises(Invalid) as error:
        route.incoming(path, query, content)
    assert error.value.field == field


@pytest.mark.parametrize("lease", ["", ".", ".."])
def test_what_cannot_be_in_a_path_is_refused(lease: str) -> None:
    with pytest.raises(Invalid, match=r"lease=.*: must not be empty"):
        BY_METHOD["explain"].outgoing({"lease": lease})


def test_a_job_is_carried_whole() -> None:
    job = Job(entrypoint=("python", "x.py"), env={"A": "b"}, max_retries=2)
    assert carried("run", lease="l", job=job, client_id="c")["job"] == job


@pytest.mark.parametrize(
    ("one", "other", "fine"),
    [
        ("0.1.0", "0.1.7", True),
        ("0.1.0", "0.2.0", True),
        ("0.3.0", "0.1.0", False),
        ("1.0.0", "0.9.0", False),
        ("0.1.0", "dev", True),
    ],
)
def test_versions(one: str, other: str, fine: bool) -> None:
    assert work_together(one, other) is fine
    assert work_together(other, one) is fine
