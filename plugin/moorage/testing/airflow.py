"""Airflow standalone with a home and ports of its own: for system tests and the demo."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

USER = "admin"
#: Airflow's own processes find each other by this name in PATH.
_BIN = str(Path(sys.executable).parent)
#: A shell's background job ignores SIGINT, which is the only signal that stops standalone with its children.
_START = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.executable, "
    "[sys.executable, '-m', 'airflow', *sys.argv[1:]])"
)


class AirflowStandalone:
    """One Airflow: ``with AirflowStandalone(home, dags) as airflow: run = airflow.trigger("my_dag")``.

    Args:
        home: a folder of its own; made if absent.
        dags_folder: where the DAG files are.
        env: more variables, for example AIRFLOW_CONN_MOORAGE_DEFAULT.
        port: of the API server on 127.0.0.1; 0 takes a free one.
        users: of the simple auth manager, name -> role. `admin` is always one.
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        env: Mapping[str, str] | None = None,
        port: int = 0,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home.resolve()
        self.dags_folder = dags_folder.resolve()
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.users = {USER: "admin", **(users or {})}
        self.passwords = {user: secrets.token_urlsafe(12) for user in self.users}
        self.log = self.home / "standalone.log"
        self._more = dict(env or {})
        self._jwt = secrets.token_urlsafe(64)
        self._log_ports = (free_port(), free_port())
        self._processes: list[subprocess.Popen[bytes]] = []
        self._http = httpx.Client(base_url=self.url, timeout=30)
        self._tokens: dict[str, str] = {}

    # --- starting and stopping

    @property
    def argv(self) -> list[str]:
        """The command that is Airflow; stop it with SIGINT."""
        return self.command("standalone")

    @staticmethod
    def command(*words: str) -> list[str]:
        """The command of one ``airflow`` subcommand."""
        return [sys.executable, "-c", _START, *words]

    @property
    def password(self) -> str:
        """Of the user `admin`."""
        return self.passwords[USER]

    @property
    def env(self) -> dict[str, str]:
        """The whole environment of Airflow's processes; nothing of another Airflow or broker gets in."""
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "MOORAGE_"))}
        mine.pop("PYTHONDONTWRITEBYTECODE", None)
        mine["PATH"] = os.pathsep.join([_BIN, mine.get("PATH", os.defpath)])
        # setproctitle would overwrite the environment, by which `stop` knows this Airflow's processes.
        return {**mine, "SPT_NOENV": "1", **self._settings(), **self._more}

    def _settings(self) -> dict[str, str]:
        settings = {
            "CORE__DAGS_FOLDER": self.dags_folder,
            "CORE__LOAD_EXAMPLES": False,
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            # Each slot is a process of 150 MB, and the default is 32.
            "CORE__PARALLELISM": 4,
            "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in self.users.items()),
            "API__HOST": "127.0.0.1",
            "API__PORT": self.port,
            "API__BASE_URL": self.url,
            "API__WORKERS": 1,
            "API__SECRET_KEY": self._jwt,
            "API_AUTH__JWT_SECRET": self._jwt,
            "DAG_PROCESSOR__REFRESH_INTERVAL": 5,
            "DAG_PROCESSOR__PARSING_PROCESSES": 1,
            "LOGGING__TRIGGER_LOG_SERVER_PORT": self._log_ports[0],
            "LOGGING__WORKER_LOG_SERVER_PORT": self._log_ports[1],
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db",
            "USAGE_DATA_COLLECTION__ENABLED": False,
        }
        return {"AIRFLOW_HOME": str(self.home), **{f"AIRFLOW__{name}": str(value) for name, value in settings.items()}}

    def prepare(self) -> None:
        """Make the home, with the passwords written where Airflow would else invent some."""
        self.home.mkdir(parents=True, exist_ok=True)
        passwords = self.home / "simple_auth_manager_passwords.json.generated"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps(self.passwords))

    def start(self, limit_s: float = 240) -> None:
        """Start it and wait until all its parts are healthy."""
        self.prepare()
        self.spawn(self.argv, self.log)
        self.wait(limit_s)

    def start_triggerer(self) -> subprocess.Popen[bytes]:
        """One more triggerer, beside standalone's own or in its place."""
        port = {"AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port())}
        return self.spawn(self.command("triggerer"), self.home / "triggerer-2.log", port)

    def triggerers(self) -> list[Any]:
        """The `psutil.Process` of each triggerer, oldest first; what it started are its children."""
        import psutil

        found = []
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = process.parent()
                if _runs(process, "triggerer") and not (parent and _runs(parent, "triggerer")):
                    found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    def kill(self) -> None:
        """kill -9 of every process of this Airflow at once. `start` starts it again, on the same home."""
        self._kill(self._family())
        for process in self._processes:
            process.wait(10)
        self._processes.clear()

    def spawn(self, argv: Sequence[str], log: Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start one process in this Airflow's environment; `stop` ends it."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                argv, env={**self.env, **(more or {})}, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._processes.append(process)
        return process

    def wait(self, limit_s: float) -> None:
        """Until scheduler, triggerer, DAG processor and database are healthy.

        Raises:
            TimeoutError, RuntimeError: they are not in time, or it ended; names the log.
        """
        until = time.monotonic() + limit_s
        while not self.healthy():
            if any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"Airflow ended while starting; its log: {self.log}")
            if time.monotonic() > until:
                raise TimeoutError(f"Airflow is not healthy after {limit_s:.0f} s; its log: {self.log}")
            time.sleep(0.5)

    def healthy(self) -> bool:
        """Whether every part says so."""
        with contextlib.suppress(httpx.TransportError, ValueError):
            answer = self._http.get("/api/v2/monitor/health", timeout=5)
            parts = answer.json() if answer.is_success else {}
            return bool(parts) and all(part and part["status"] == "healthy" for part in parts.values())
        return False

    def stop(self, limit_s: float = 15) -> None:
        """SIGINT, wait, then SIGKILL to all that is left: what it started, and what carries its home.

        The scheduler may hang at its idle LocalExecutor workers, so the wait is short.
        """
        self._http.close()
        family = self._family()
        for process in self._processes:
            if process.poll() is None:
                # To its group, as a terminal's Ctrl-C: each part stops by itself.
                os.killpg(process.pid, signal.SIGINT)
        until = time.monotonic() + limit_s
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self._kill({*family, *self._family()})
        for process in self._processes:
            process.wait(10)
        self._processes.clear()

    def _kill(self, family: set[Any]) -> None:
        import psutil

        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess), self.log.open("a") as log:
                log.write(f"stop: killing {process.pid} ({' '.join(process.cmdline())[:100]})\n")
                process.kill()
        psutil.wait_procs(family, timeout=10)

    def _family(self) -> set[Any]:
        """Every process of this Airflow; task processes have sessions of their own, so the home tells."""
        import psutil

        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get("AIRFLOW_HOME") == str(self.home):
                    found.add(process)
        return found

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop(limit_s=0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- its API

    def token(self, user: str = USER) -> str:
        """A bearer token of the API: the last one, until the server refuses it."""
        if user not in self._tokens:
            answer = self._http.post("/auth/token", json={"username": user, "password": self.passwords[user]})
            self._tokens[user] = str(answer.raise_for_status().json()["access_token"])
        return self._tokens[user]

    def call(self, method: str, path: str, body: object = None, user: str | None = USER) -> httpx.Response:
        """One request below the server's root; `user` None: anonymous. The answer may be an error."""
        if user is None:
            return self._http.request(method, path, json=body)
        known = user in self._tokens
        answer = self._call_as(user, method, path, body)
        if answer.status_code == httpx.codes.UNAUTHORIZED and known:
            self._tokens.pop(user, None)
            answer = self._call_as(user, method, path, body)
        return answer

    def _call_as(self, user: str, method: str, path: str, body: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token(user)}"}
        return self._http.request(method, path, json=body, headers=headers)

    def get(self, path: str) -> Any:
        """JSON of a GET below ``/api/v2``. Raises `httpx.HTTPStatusError`."""
        return self.call("GET", f"/api/v2{path}").raise_for_status().json()

    def wait_for_dag(self, dag: str, limit_s: float = 120) -> None:
        """Until the DAG file is parsed.

        Raises:
            TimeoutError: it is not in time; with the import errors that there are.
        """
        until = time.monotonic() + limit_s
        while not self.call("GET", f"/api/v2/dags/{dag}").is_success:
            if time.monotonic() > until:
                errors = [error["stack_trace"] for error in self.get("/importErrors")["import_errors"]]
                raise TimeoutError(f"no DAG {dag} after {limit_s:.0f} s; import errors: {errors or 'none'}")
            time.sleep(0.5)

    def trigger(self, dag: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run; its id."""
        body = {"logical_date": None, "conf": dict(conf or {})}
        answer = self.call("POST", f"/api/v2/dags/{dag}/dagRuns", body).raise_for_status()
        return str(answer.json()["dag_run_id"])

    def run_state(self, dag: str, run: str) -> str:
        """``queued``, ``running``, ``success`` or ``failed``."""
        return str(self.get(f"/dags/{dag}/dagRuns/{run}")["state"])

    def task_instances(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Airflow's JSON of each task instance."""
        return list(self.get(f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"])

    def task_states(self, dag: str, run: str) -> dict[str, str | None]:
        """Task -> its state; None: not scheduled yet."""
        return {task["task_id"]: task["state"] for task in self.task_instances(dag, run)}

    def returned(self, dag: str, run: str, task: str) -> Any:
        """What a task returned (its XCom). Raises `httpx.HTTPStatusError` if it did not."""
        value = self.get(f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value")["value"]
        return json.loads(value) if isinstance(value, str) else value

    def mark(self, dag: str, run: str, task: str, state: str) -> None:
        """What a user does with *Mark as failed* (or success)."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}"
        self.call("PATCH", path, {"new_state": state}).raise_for_status()

    def clear(self, dag: str, run: str, task: str) -> None:
        """What a user does with *Clear*. Wait for the run to finish before clearing a finished task."""
        body = {"dag_run_id": run, "task_ids": [task], "dry_run": False, "only_failed": False, "reset_dag_runs": True}
        self.call("POST", f"/api/v2/dags/{dag}/clearTaskInstances", body).raise_for_status()

    def wait_for_run(self, dag: str, run: str, limit_s: float) -> str:
        """The run's final state. Raises `TimeoutError`."""
        until = time.monotonic() + limit_s
        while (state := self.run_state(dag, run)) not in ("success", "failed"):
            if time.monotonic() > until:
                raise TimeoutError(f"{dag} {run} is {state} after {limit_s:.0f} s: {self.task_states(dag, run)}")
            time.sleep(0.5)
        return state

    def task_log(self, dag: str, run: str, task: str, attempt: int = 1) -> str:
        """The log of one try, as plain text."""
        content = self.get(f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{attempt}?full_content=true")[
            "content"
        ]
        lines = content if isinstance(content, list) else [content]
        return "\n".join(str(line.get("event", line)) if isinstance(line, dict) else str(line) for line in lines)


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _runs(process: Any, subcommand: str) -> bool:
    """Whether it is ``airflow <subcommand>``."""
    import psutil

    try:
        return bool(process.cmdline()[-1:] == [subcommand])
    except psutil.Error:
        return False
