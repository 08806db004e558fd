"""What a user gets wrong is told at once in one sentence that names field, value and fix, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cli_terminal import HangsUp, Said, Site

from moorage.api.auth import Role

#: Files of the folder that the commands run in.
FILES = {
    "code/train.py": "print('hi')",
    "empty.token": "",
    "wrong.token": "wrong",
    "two.token": "two words",
    "not-toml.toml": "x =",
    "key.toml": "foo = 1",
    "slip.toml": "[[pools]]\nname = 'a'\nprize = 3",
    "type.toml": "rebalance_every_s = 'abc'",
    "choice.toml": "[[pools]]\nname = 'a'\ncapacity = 'foo'",
    "negative.toml": "[[pools]]\nname = 'a'\nprice = -3",
    "list.yaml": "- 1",
    "broken.yaml": "a: [",
    "broken.json": "{",
    "swapped.toml": "workers = [4, 2]",
    "workers.toml": "workers = 'many'",
    "typo.toml": "worker = [1, 2]",
    "past.toml": "deadline = 2020-01-01T00:00:00Z",
    "zone.toml": "deadline = 2020-01-01T00:00:00",
    "level.toml": "topology = {required = 'galaxy'}",
    "request.txt": "workers: 1",
}
LEVELS = "name one of the fleet's levels: zone, block, rack, host, island"
NO_FILE = "name a file that can be read (No such file or directory)"
NO_TEXT = "name a text file; this one is not UTF-8"
A_TIME = "write 90m, 2h, 1d, or a time like 2026-11-30T20:00:00+00:00"
INTEGER = "Input should be a valid integer, unable to parse string as an integer"

#: Words of `moorage run`, a command of which follows, and what is said.
RUNS: list[tuple[list[str], str]] = [
    (["--workers", "4..2"], "workers=(4, 2): max must not be below min; did you mean (2, 4)?"),
    (["--workers", "0"], "workers=(0, 0): min must be at least 1"),
    (["--workers", "1.."], "workers='1..': write N or MIN..MAX, for example 1..4"),
    (["--workers", "many"], "workers='many': write N or MIN..MAX, for example 1..4"),
    (["--gpus", "0"], "gpus_per_worker=0: give each worker at least 1 GPU"),
    (["--gpus", "9"], "gpus_per_worker=9: can never fit: largest node has 4"),
    (["--gpus", "x"], f"--gpus: {INTEGER} (`moorage run -h` helps)"),
    (["--model", "H999"], "models=('H999',): the fleet has FAKE-GPU"),
    (["--workers", "9", "--ray"], "workers=(9, 9): can never fit: the whole fleet has room for 8 of 9 workers"),
    (
        ["--workers", "5"],
        "workers=(5, 5): can never fit: it needs 5 GPUs in one host, and the largest host is n1 with 4",
    ),
    (["--required", "galaxy"], f"topology.required='galaxy': {LEVELS}"),
    (["--preferred", "galaxy"], f"topology.preferred='galaxy': {LEVELS}"),
    (["--budget", "-1"], "budget_usd='-1': give a positive amount of dollars, or none for no limit"),
    (["--budget", "NaN"], "budget_usd='NaN': give a positive amount of dollars, or none for no limit"),
    (["--budget", "inf"], "budget_usd='Infinity': give a positive amount of dollars, or none for no limit"),
    (["--budget", "much"], "budget='much': write dollars, for example 12.50"),
    (
        ["--deadline", "2020-01-01T00:00:00Z"],
        "deadline='2020-01-01T00:00:00+00:00': give a time in the future; it is 20",
    ),
    (["--deadline", "2030-01-01"], "deadline='2030-01-01 00:00:00': give a time with a time zone, for example 20"),
    (["--deadline", "soon"], f"deadline='soon': {A_TIME}"),
    (["--capacity", "foo"], "--capacity: 'foo' is not one of 'reserved', 'on-demand', 'spot' (`moorage run -h` helps)"),
    (["--retries", "-1"], "job.max_retries=-1: must not be negative"),
    (["--env", "A"], "env='A': write NAME=VALUE"),
    (["--code", "gone"], "code='gone': name a folder"),
    (["--code", "code/train.py"], "code='code/train.py': name a folder"),
    (["--nonsense"], "No such option: --nonsense"),
]
#: Whole commands, and what is said.
COMMANDS: list[tuple[list[str], str]] = [
    (["run"], "Missing argument 'command' (`moorage run -h` helps)"),
    (["run", "--"], "Missing argument 'command' (`moorage run -h` helps)"),
    (["run", ""], "command='': name a program, for example: moorage run -- nvidia-smi"),
    (["run", "python", "train.py"], "command='train.py': the node does not have your files; ship their folder with"),
    (["run", "--code", "code", "python", "-u", "tarin.py"], "command='tarin.py': there is no such file in --code code"),
    (["stauts"], "No such command 'stauts'. Did you mean 'status'? (`moorage -h` helps)"),
    (["status", "more"], "Got unexpected extra argument(s) (more) (`moorage status -h` helps)"),
    (["explain", "nope"], "there is no lease nope"),
    (["explain", ""], "lease='': must not be empty"),
    (["logs", "nope"], "there is no lease nope"),
    (["logs", "-f", "nope"], "there is no lease nope"),
    (["release", "nope"], "there is no lease nope"),
    (["priority", "nope", "3"], "there is no lease nope"),
    (["priority", "nope", "high"], f"value: {INTEGER} (`moorage priority -h` helps)"),
    (["drain", "nope"], "there is no node nope"),
    (["cordon", "nope"], "there is no node nope"),
    (["uncordon", "nope"], "there is no node nope"),
    (["lose", "nope"], "there is no node nope"),
    (["config", "apply", "key.toml"], "foo=1: no such key; known: attempt_silent_s, budget_warn, elastic,"),
    (["config", "apply", "slip.toml"], "pools.0.prize=3: no such key; did you mean price?"),
    (["config", "apply", "type.toml"], "rebalance_every_s='abc': Input should be a valid number"),
    (["config", "apply", "choice.toml"], "pools.0.capacity='foo': Input should be 'reserved', 'on-demand' or 'spot'"),
    (["config", "apply", "negative.toml"], "pools.a.price='-3': must not be negative"),
    (["config", "apply", "not-toml.toml"], "policy='not-toml.toml': write valid TOML ("),
    (["config", "apply", "gone.toml"], f"policy='gone.toml': {NO_FILE}"),
    (["config", "apply", "code"], "policy='code': name a file that can be read (Is a directory)"),
    (["config", "apply", "bytes.toml"], f"policy='bytes.toml': {NO_TEXT}"),
    (["place", "gone.toml"], f"request='gone.toml': {NO_FILE}"),
    (["place", "bytes.toml"], f"request='bytes.toml': {NO_TEXT}"),
    (["place", "request.txt"], "request='request.txt': use one of the endings .toml, .json, .yaml, .yml"),
    (["place", "broken.json"], "request='broken.json': write valid JSON ("),
    (["place", "not-toml.toml"], "request='not-toml.toml': write valid TOML ("),
    (["place", "broken.yaml"], "request='broken.yaml': write valid YAML ("),
    (["place", "list.yaml"], "request='list.yaml': write a mapping, for example workers: [1, 4]"),
    (["place", "swapped.toml"], "workers=(4, 2): max must not be below min; did you mean (2, 4)?"),
    (["place", "workers.toml"], "workers='many': write N or MIN..MAX, for example 1..4"),
    (["place", "typo.toml"], "worker=[1, 2]: no such key; did you mean workers?"),
    (["place", "past.toml"], "deadline='2020-01-01T00:00:00+00:00': give a time in the future; it is 20"),
    (["place", "zone.toml"], "deadline='2020-01-01 00:00:00': give a time with a time zone, for example 20"),
    (["place", "level.toml"], f"topology.required='galaxy': {LEVELS}"),
    (["token", "create", "x", "--role", "king"], "--role: 'king' is not one of 'viewer', 'submitter', 'operator',"),
    (["token", "create", "x", "--role", "submitter"], "team=None: a submitter's token needs the team that pays"),
    (["token", "create", "", "--role", "viewer"], "name='': give 1 to 200 characters"),
    (["token", "revoke", "nope"], "there is no token nope"),
    (["status", "--token-file", "gone.token"], f"token-file='gone.token': {NO_FILE}"),
    (["status", "--token-file", "bytes.toml"], f"token-file='bytes.toml': {NO_TEXT}"),
    (["status", "--token-file", "empty.token"], "token-file='empty.token': it is empty; write a token into it"),
    (["status", "--token-file", "two.token"], "token='(not shown)': give the one word that `moorage token create`"),
    (["status", "--token-file", "wrong.token"], "the token is not known here, or was revoked: ask an operator for"),
    (["status", "--url", "127.0.0.1:8740"], "url='127.0.0.1:8740': give an address like http://127.0.0.1:8740"),
    (["status", "--url", "http://"], "url='http://': give an address like http://127.0.0.1:8740"),
    (["ray-autoscaler", "--address", "head"], "address='head': give host:port of the Ray head, for example 10.0.0.5"),
]
AGENT = ["agent", "join", "--node", "n9", "--state-dir", "state", "--fake-gpus", "1"]


class Desk:
    """The site with `FILES` in its folder, and what it was like before."""

    def __init__(self, site: Site) -> None:
        self.moorage, self.broker, self.client, self.scratch = site.moorage, site.broker, site.client, site.scratch
        self.looker = site.client.make_token("looker", Role.VIEWER)
        self.stray = site.client.make_token("agent-n7", Role.AGENT, node="n7")
        self._folder, self._seen = site.folder, 0
        for name, text in FILES.items():
            path = site.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        (site.folder / "bytes.toml").write_bytes(b"\xff\xfe")
        self.before = self.files()
        while self.news():
            pass

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self._folder)) for path in self._folder.rglob("*"))

    def news(self) -> list[str]:
        """Sentences of the journal that were not told yet."""
        events = self.client.events(self._seen)
        self._seen = events[-1].seq if events else self._seen
        return [event.sentence for event in events]


@pytest.fixture(scope="module")
def desk(site: Site, hangs_up: HangsUp) -> Desk:
    """Made after `hangs_up`, whose ten seconds these tests use."""
    return Desk(site)


@pytest.fixture(autouse=True)
def leaves_nothing(desk: Desk) -> Iterator[None]:
    """No word in the broker's journal: no lease, no node, no policy, no token. And no file."""
    yield
    assert (desk.news(), desk.files()) == ([], desk.before)


def refused(said: Said, sentence: str, status: int = 2) -> None:
    assert said.err.startswith(f"moorage: {sentence}"), said.err
    assert said.err.count("\n") == 1, said.err
    assert (said.status, said.out) == (status, "")


@pytest.mark.parametrize(("words", "sentence"), RUNS, ids=lambda value: " ".join(value) if type(value) is list else "")
def test_a_run_that_cannot_be_right(desk: Desk, words: list[str], sentence: str) -> None:
    refused(desk.moorage("run", *words, "--", "true"), sentence)


@pytest.mark.parametrize(
    ("words", "sentence"), COMMANDS, ids=lambda value: " ".join(value) if type(value) is list else ""
)
def test_a_command_that_cannot_be_right(desk: Desk, words: list[str], sentence: str) -> None:
    refused(desk.moorage(*words), sentence)


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"MOORAGE_TOKEN": None}, "token=None: name a file with --token-file, or set MOORAGE_TOKEN or MOORAGE_TOKEN_F"),
        ({"MOORAGE_TOKEN": "wrong"}, "the token is not known here, or was revoked: ask an operator for a new one"),
        ({"MOORAGE_TOKEN": "grün"}, "token='(not shown)': give the one word that `moorage token create` printed"),
        ({"MOORAGE_TOKEN": None, "MOORAGE_TOKEN_FILE": "gone"}, f"MOORAGE_TOKEN_FILE='gone': {NO_FILE}"),
        ({"MOORAGE_TOKEN": None, "MOORAGE_TOKEN_FILE": "empty.token"}, "MOORAGE_TOKEN_FILE='empty.token': it is empty"),
        ({"MOORAGE_TOKEN": None, "MOORAGE_TOKEN_FILE": "bytes.toml"}, f"MOORAGE_TOKEN_FILE='bytes.toml': {NO_TEXT}"),
        ({"MOORAGE_URL": "localhost"}, "url='localhost': give an address like http://127.0.0.1:8740"),
    ],
)
def test_an_environment_that_cannot_be_right(desk: Desk, env: dict[str, str | None], sentence: str) -> None:
    refused(desk.moorage("status", **env), sentence)


def test_a_role_that_may_not(desk: Desk) -> None:
    said = desk.moorage("run", "true", MOORAGE_TOKEN=desk.looker)
    refused(said, "looker is viewer: submit is for operator, submitter")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--port", "{port}", "--database", "sqlite:///new.db"], "port={port}: choose a free one (Address already in"),
        (["--port", "0", "--database", "sqlite:///{database}"], "another broker writes sqlite:///{database}: stop it"),
        (["--port", "0", "--database", "new.db"], "database='new.db': give a URL, for example sqlite:///moorage.db"),
        (["--port", "0", "--database", "mysql://x"], "database='mysql://x': use SQLite or PostgreSQL, for example"),
        (
            ["--port", "0", "--database", "sqlite:///new.db", "--policy", "slip.toml"],
            "pools.0.prize=3: no such key; did you mean price?",
        ),
    ],
)
def test_a_server_that_cannot_start(desk: Desk, words: list[str], sentence: str) -> None:
    known = {"port": desk.broker.url.rpartition(":")[2], "database": str(desk.broker.folder / "moorage.db")}
    refused(desk.moorage("serve", *(word.format(**known) for word in words)), sentence.format(**known))


def test_a_database_that_is_none(desk: Desk) -> None:
    path = desk.scratch / "garbage.db"
    path.write_text("garbage")
    said = desk.moorage("serve", "--port", "0", "--database", f"sqlite:///{path}")
    refused(said, f"the database sqlite:///{path} cannot be used: file is not a database", status=3)


@pytest.mark.parametrize(
    ("words", "env", "sentence"),
    [
        ([], {"MOORAGE_TOKEN": "wrong"}, "the token is not known here, or was revoked: ask an operator for a new one"),
        ([], {"MOORAGE_TOKEN": None}, "token=None: name a file with --token-file"),
        ([], {}, "first is operator: orders is for agent"),
        (["--node", "n 9"], {}, "node='n 9': use 1 to 63 letters, digits, dots, dashes; the ends alphanumeric"),
        (["--fake-gpus", "-1"], {}, "fake_gpus=-1: give a number from 0 to 1024"),
        (["--label", "rack"], {}, "label='rack': write KEY=VALUE"),
    ],
)
def test_an_agent_that_cannot_join(desk: Desk, words: list[str], env: dict[str, Any], sentence: str) -> None:
    refused(desk.moorage(*AGENT, *words, desk.broker.url, **env), sentence)


def test_an_agent_with_anothers_token(desk: Desk) -> None:
    said = desk.moorage(*AGENT, desk.broker.url, MOORAGE_TOKEN=desk.stray)
    refused(said, "agent-n7 speaks for node n7, not for n9")
