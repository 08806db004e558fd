"""The metadata services of AWS (IMDSv2), GCP and Azure on loopback, with their header rules, for notices on demand.

``python -m moorage.testing.metadata --port 0 --port-file F --nodes a,b`` serves node ``a`` below ``/node/a``; without
``--nodes`` one node at the root. ``POST /_control/notice {"node": "a", "seconds": 20}``, ``/_control/rebalance`` and
``/_control/cancel`` play the cloud.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from moorage.core.invalid import Invalid

MOST_TTL_S = 21600
#: Longest body of a control call in bytes.
BODY_LIMIT = 4096
#: Longest wait for a change in seconds.
MOST_WAIT_S = 60.0

_ERROR_PAGE = """<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
\t"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>{code} - {phrase}</title>
 </head>
 <body>
  <h1>{code} - {phrase}</h1>
 </body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "text/plain"


def error_page(status: HTTPStatus) -> Answer:
    """As AWS answers: an XHTML page."""
    return Answer(status, _ERROR_PAGE.format(code=status.value, phrase=status.phrase), kind="text/html")


@dataclass
class Machine:
    """One node as the cloud sees it. Guarded by the server's lock."""

    name: str
    deadline: datetime | None = None
    action: str = "terminate"
    rebalance: datetime | None = None
    event: str = ""
    #: Rises with every change: Azure's DocumentIncarnation, GCP's ETag.
    changes: int = 1
    #: AWS session token -> monotonic second at which it expires.
    tokens: dict[str, float] = field(default_factory=dict)


class MetadataServer:
    """``with MetadataServer() as server: server.notice(seconds=120)``.

    Args:
        nodes: names; each is served below ``/node/<name>``. Empty: one node at the root.
        port: on 127.0.0.1; 0 takes a free one.
    """

    def __init__(self, nodes: Sequence[str] = (), port: int = 0) -> None:
        self.machines = {name: Machine(name) for name in nodes or ("",)}
        self.changed = threading.Condition()
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def url(self, node: str = "") -> str:
        """Base address of one node's metadata, for every cloud."""
        return f"http://127.0.0.1:{self.port}" + (f"/node/{node}" if node else "")

    def notice(self, seconds: float = 120.0, node: str = "", action: str = "terminate") -> datetime:
        """The cloud takes the node in so many seconds; returns when (whole seconds, as AWS says it)."""
        deadline = (datetime.now(UTC) + timedelta(seconds=seconds)).replace(microsecond=0)
        with self.changed:
            machine = self._machine(node)
            machine.deadline, machine.action, machine.event = deadline, action, secrets.token_hex(16)
            self._touch(machine)
        return deadline

    def recommend(self, node: str = "") -> None:
        """A rebalance recommendation: AWS only, and no deadline."""
        with self.changed:
            machine = self._machine(node)
            machine.rebalance = datetime.now(UTC).replace(microsecond=0)
            self._touch(machine)

    def cancel(self, node: str = "") -> None:
        """Neither notice nor recommendation stands any more."""
        with self.changed:
            machine = self._machine(node)
            machine.deadline = machine.rebalance = None
            self._touch(machine)

    def _machine(self, node: str) -> Machine:
        if node not in self.machines:
            raise Invalid("node", node, f"name one of: {', '.join(self.machines)}")
        return self.machines[node]

    def _touch(self, machine: Machine) -> None:
        machine.changes += 1
        self.changed.notify_all()


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one machine."""

    verb: str
    path: str
    query: Mapping[str, str]
    #: Names in lower case.
    headers: Mapping[str, str]


def answer(server: MetadataServer, machine: Machine, call: Call) -> Answer:
    """By the cloud whose path it is."""
    if call.path.startswith("/latest/"):
        with server.changed:
            return _aws(machine, call)
    if call.path.startswith("/computeMetadata/v1/"):
        return _gcp(server, machine, call)
    if call.path.startswith("/metadata/"):
        with server.changed:
            return _azure(machine, call)
    return error_page(HTTPStatus.NOT_FOUND)


# --- AWS


def _aws(machine: Machine, call: Call) -> Answer:
    if call.path == "/latest/api/token":
        return _aws_token(machine, call)
    if call.verb != "GET":
        return error_page(HTTPStatus.METHOD_NOT_ALLOWED)
    token = call.headers.get("x-aws-ec2-metadata-token", "")
    if machine.tokens.get(token, 0.0) < time.monotonic():
        return error_page(HTTPStatus.UNAUTHORIZED)
    body = _aws_tree(machine).get(call.path.removeprefix("/latest/meta-data/"))
    return error_page(HTTPStatus.NOT_FOUND) if body is None else Answer(HTTPStatus.OK, body)


def _aws_token(machine: Machine, call: Call) -> Answer:
    if call.verb != "PUT":
        return error_page(HTTPStatus.METHOD_NOT_ALLOWED)
    if "x-forwarded-for" in call.headers:
        return error_page(HTTPStatus.FORBIDDEN)
    text = call.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
    if not text.isdigit() or not 1 <= int(text) <= MOST_TTL_S:
        return error_page(HTTPStatus.BAD_REQUEST)
    now = time.monotonic()
    for old in [token for token, until in machine.tokens.items() if until < now]:
        del machine.tokens[old]
    token = secrets.token_urlsafe(40)
    machine.tokens[token] = now + int(text)
    return Answer(HTTPStatus.OK, token, {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": text})


def _aws_tree(machine: Machine) -> Mapping[str, str]:
    """What exists now; everything else is 404."""
    tree = {"instance-life-cycle": "spot", "instance-id": f"i-{machine.name or 'node'}"}
    if machine.rebalance is not None:
        tree["events/recommendations/rebalance"] = json.dumps({"noticeTime": _zulu(machine.rebalance)})
    if machine.deadline is not None:
        at = _zulu(machine.deadline)
        tree["spot/instance-action"] = json.dumps({"action": machine.action, "time": at})
        if machine.action == "terminate":
            tree["spot/termination-time"] = at
    return tree


def _zulu(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


# --- GCP


def _gcp(server: MetadataServer, machine: Machine, call: Call) -> Answer:
    flavor = {"Metadata-Flavor": "Google"}
    if call.headers.get("metadata-flavor") != "Google":
        return Answer(HTTPStatus.FORBIDDEN, "Missing Metadata-Flavor:Google header.", kind="text/html")
    with server.changed:
        if call.path != "/computeMetadata/v1/instance/preempted":
            return Answer(HTTPStatus.NOT_FOUND, "", flavor)
        if call.query.get("wait_for_change", "").lower() == "true":
            before = call.query.get("last_etag", _etag(machine))
            wait = min(float(call.query.get("timeout_sec", MOST_WAIT_S)), MOST_WAIT_S)
            server.changed.wait_for(lambda: _etag(machine) != before, wait)
        body = "FALSE" if machine.deadline is None else "TRUE"
        return Answer(HTTPStatus.OK, body, {**flavor, "ETag": _etag(machine)}, "application/text")


def _etag(machine: Machine) -> str:
    return f"{machine.changes:016x}"


# --- Azure


def _azure(machine: Machine, call: Call) -> Answer:
    if call.headers.get("metadata", "").lower() != "true":
        return _azure_bad("Bad request. Required metadata header not specified")
    if "api-version" not in call.query:
        return _azure_bad("Bad request. api-version was not specified in the request")
    match call.verb, call.path:
        case "GET", "/metadata/scheduledevents":
            return Answer(HTTPStatus.OK, json.dumps(_azure_events(machine)), kind="application/json")
        case "POST", "/metadata/scheduledevents":
            return Answer(HTTPStatus.OK)
        case "GET", "/metadata/instance/compute/name":
            return Answer(HTTPStatus.OK, machine.name or "node")
        case _:
            return Answer(HTTPStatus.NOT_FOUND, json.dumps({"error": "Not found"}), kind="application/json")


def _azure_bad(why: str) -> Answer:
    return Answer(HTTPStatus.BAD_REQUEST, json.dumps({"error": why}), kind="application/json")


def _azure_events(machine: Machine) -> dict[str, Any]:
    events = []
    if machine.deadline is not None:
        event = {
            "EventId": machine.event,
            "EventStatus": "Scheduled",
            "EventType": "Preempt",
            "ResourceType": "VirtualMachine",
            "Resources": [machine.name or "node"],
            "NotBefore": format_datetime(machine.deadline, usegmt=True),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        events.append(event)
    return {"DocumentIncarnation": machine.changes, "Events": events}


# --- control and HTTP


def _control(server: MetadataServer, path: str, said: Mapping[str, Any]) -> Answer:
    node = str(said.get("node", ""))
    made: dict[str, Any] = {}
    match path:
        case "/_control/health":
            made["nodes"] = list(server.machines)
        case "/_control/notice":
            made["deadline"] = server.notice(float(said.get("seconds", 120)), node).isoformat()
        case "/_control/rebalance":
            server.recommend(node)
        case "/_control/cancel":
            server.cancel(node)
        case _:
            return error_page(HTTPStatus.NOT_FOUND)
    return Answer(HTTPStatus.OK, json.dumps({"ok": True, **made}), kind="application/json")


def _handler(server: MetadataServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "EC2ws"

        def _serve(self) -> None:
            body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), BODY_LIMIT))
            made = self._answer(body)
            data = made.body.encode()
            self.send_response(made.status)
            for name, value in made.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", made.kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = _serve  # noqa: N815 - the names that http.server asks for.

        def _answer(self, body: bytes) -> Answer:
            parts = urlsplit(self.path)
            if parts.path.startswith("/_control/"):
                return self._played(parts.path, body)
            node, path = _node_of(parts.path)
            machine = server.machines.get(node)
            if machine is None:
                return error_page(HTTPStatus.NOT_FOUND)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            headers = {key.lower(): value for key, value in self.headers.items()}
            return answer(server, machine, Call(self.command, path, query, headers))

        def _played(self, path: str, body: bytes) -> Answer:
            try:
                return _control(server, path, json.loads(body or b"{}"))
            except (Invalid, ValueError) as error:
                return Answer(HTTPStatus.BAD_REQUEST, json.dumps({"error": str(error)}), kind="application/json")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name.
            """Agents ask every second: nothing to log."""

    return Handler


def _node_of(path: str) -> tuple[str, str]:
    """(node, path below it)."""
    if not path.startswith("/node/"):
        return "", path
    node, _, rest = path.removeprefix("/node/").partition("/")
    return node, f"/{rest}"


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m moorage.testing.metadata", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--port-file", type=Path, help="write the port here once it listens")
    parser.add_argument("--nodes", default="", help="names, comma separated")
    options = parser.parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with MetadataServer([name for name in options.nodes.split(",") if name], options.port) as server:
        if options.port_file is not None:
            part = options.port_file.with_suffix(".part")
            part.write_text(str(server.port))
            part.replace(options.port_file)
        stop.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
