"""The metadata services of AWS (IMDSv2), GCP and Azure, as far as they warn of an end."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import httpx

from moorage.api.values import Notice

#: Seconds for a metadata server to answer; it is on the host or next to it.
ANSWER_S = 2.0


class Absent(Exception):
    """The endpoint does not answer, or not as it should. Says what happened."""


class Source(Protocol):
    """One metadata service."""

    name: str

    def poll(self) -> Notice | None:
        """The notice that stands now; None: there is none. Raises `Absent`."""
        ...

    def close(self) -> None: ...


class _Http:
    """A metadata server is never behind a proxy, whatever the environment says."""

    def __init__(self, url: str, timeout: float = ANSWER_S) -> None:
        self._client = httpx.Client(base_url=url.rstrip("/"), timeout=timeout, trust_env=False)

    def ask(self, verb: str, path: str, headers: dict[str, str], timeout: float | None = None) -> httpx.Response:
        try:
            return self._client.request(verb, path, headers=headers, timeout=timeout or ANSWER_S)
        except httpx.HTTPError as error:
            raise Absent(f"{self._client.base_url}: {error or type(error).__name__}") from error

    def close(self) -> None:
        self._client.close()


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        said = answer.json()
    except ValueError as error:
        raise Absent(f"{answer.url} answered no JSON: {answer.text[:80]!r}") from error
    if not isinstance(said, dict):
        raise Absent(f"{answer.url} answered {type(said).__name__} where an object was expected")
    return said


def _rfc3339(text: str, url: httpx.URL) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise Absent(f"{url} named a time that cannot be read: {text!r}") from error
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


class Aws:
    """Spot interruption notices, and rebalance recommendations, which never have a deadline.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    """

    name = "aws"
    TTL_S = 21600
    #: Recommendations are no hurry, and the service limits how often it is asked.
    REBALANCE_S = 5.0

    def __init__(self, url: str) -> None:
        self._http = _Http(url)
        self._token: str | None = None
        self._until = 0.0
        self._rebalance: Notice | None = None
        self._next_rebalance = 0.0

    def poll(self) -> Notice | None:
        firm = self._firm()
        if firm is not None:
            return firm
        if time.monotonic() >= self._next_rebalance:
            self._next_rebalance = time.monotonic() + self.REBALANCE_S
            self._rebalance = self._recommendation()
        return self._rebalance

    def close(self) -> None:
        self._http.close()

    def _firm(self) -> Notice | None:
        answer = self._get("/latest/meta-data/spot/instance-action")
        if answer is None:
            return None
        said = _json(answer)
        return Notice(
            deadline=_rfc3339(said.get("time", ""), answer.url),
            source=f"aws {said.get('action', 'terminate')}",
            at=datetime.now(UTC),
        )

    def _recommendation(self) -> Notice | None:
        answer = self._get("/latest/meta-data/events/recommendations/rebalance")
        return None if answer is None else Notice(deadline=None, source="aws rebalance", at=datetime.now(UTC))

    def _get(self, path: str) -> httpx.Response | None:
        """The answer; None for 404. A token that is not taken any more is replaced once."""
        answer = self._http.ask("GET", path, {"X-aws-ec2-metadata-token": self._fresh_token()})
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            self._token = None
            answer = self._http.ask("GET", path, {"X-aws-ec2-metadata-token": self._fresh_token()})
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.status_code != httpx.codes.OK:
            raise Absent(f"{answer.url} answered {answer.status_code}")
        return answer

    def _fresh_token(self) -> str:
        if self._token is None or time.monotonic() > self._until:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(self.TTL_S)}
            answer = self._http.ask("PUT", "/latest/api/token", headers)
            if answer.status_code != httpx.codes.OK:
                raise Absent(f"{answer.url} answered {answer.status_code}")
            self._token, self._until = answer.text, time.monotonic() + self.TTL_S / 2
        return self._token


class Gcp:
    """Preemption. The server holds the call until the value changes, so the wait is the poll.

    https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption
    """

    name = "gcp"
    #: The instance is off 30 s after the warning.
    NOTICE_S = 30
    WAIT_S = 1

    def __init__(self, url: str) -> None:
        self._http = _Http(url)
        self._etag: str | None = None
        self._standing: Notice | None = None

    def poll(self) -> Notice | None:
        wait = f"?wait_for_change=true&timeout_sec={self.WAIT_S}&last_etag={self._etag}" if self._etag else ""
        path = f"/computeMetadata/v1/instance/preempted{wait}"
        answer = self._http.ask("GET", path, {"Metadata-Flavor": "Google"}, ANSWER_S + self.WAIT_S)
        if answer.status_code != httpx.codes.OK or answer.headers.get("Metadata-Flavor") != "Google":
            raise Absent(f"{answer.url} answered {answer.status_code}, not as GCP's metadata server does")
        self._etag = answer.headers.get("ETag")
        if answer.text.strip().upper() != "TRUE":
            self._standing = None
        elif self._standing is None:
            now = datetime.now(UTC)
            self._standing = Notice(deadline=now + timedelta(seconds=self.NOTICE_S), source="gcp preempted", at=now)
        return self._standing

    def close(self) -> None:
        self._http.close()


class Azure:
    """Scheduled events that end this machine's GPUs.

    https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
    """

    name = "azure"
    ENDING = ("Preempt", "Terminate", "Redeploy", "Reboot")
    #: The first call enables the service.
    FIRST_S = 130.0

    def __init__(self, url: str) -> None:
        self._http = _Http(url)
        self._vm: str | None = None
        self._enabled = False
        self._standing: Notice | None = None

    def poll(self) -> Notice | None:
        answer = self._ask("/metadata/scheduledevents?api-version=2020-07-01", None if self._enabled else self.FIRST_S)
        if answer.status_code != httpx.codes.OK:
            raise Absent(f"{answer.url} answered {answer.status_code}")
        self._enabled = True
        self._vm = self._vm or self._name()
        found = [event for event in _json(answer).get("Events", []) if self._mine(event)]
        deadlines = [self._deadline(event) for event in found]
        if not deadlines:
            self._standing = None
        elif self._standing is None or min(deadlines) < (self._standing.deadline or min(deadlines)):
            first = found[deadlines.index(min(deadlines))]
            source = f"azure {str(first.get('EventType')).lower()}"
            self._standing = Notice(deadline=min(deadlines), source=source, at=datetime.now(UTC))
        return self._standing

    def close(self) -> None:
        self._http.close()

    def _mine(self, event: dict[str, Any]) -> bool:
        """Events name every machine of a scale set. Where our own name is not known, each counts."""
        names = event.get("Resources") or []
        return event.get("EventType") in self.ENDING and (self._vm is None or not names or self._vm in names)

    def _deadline(self, event: dict[str, Any]) -> datetime:
        """Not before this time; an event that started has none: now."""
        text = event.get("NotBefore") or ""
        if not text:
            return datetime.now(UTC)
        try:
            return parsedate_to_datetime(text).astimezone(UTC)
        except ValueError as error:
            raise Absent(f"Azure named a time that cannot be read: {text!r}") from error

    def _name(self) -> str | None:
        answer = self._ask("/metadata/instance/compute/name?api-version=2021-02-01&format=text", None)
        return answer.text.strip() or None if answer.status_code == httpx.codes.OK else None

    def _ask(self, path: str, timeout: float | None) -> httpx.Response:
        return self._http.ask("GET", path, {"Metadata": "true"}, timeout)
