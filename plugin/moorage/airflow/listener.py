"""What the API server does when a person marks a task: its lease is let go, whether or not its trigger runs yet.

Airflow tells a trigger only if it runs already; a task that is marked while its trigger waits for a triggerer, or while
a worker still submits, would leave its lease behind. Like `LeaseTrigger.on_kill` this says `unwatch`, no more; but it
says it again once nobody is heard: the open poll of a triggerer whose host stands still sounds like another watcher.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from moorage import settings
from moorage.api.errors import MoorageError
from moorage.api.ids import new_id
from moorage.core.lease import LeaseState

if TYPE_CHECKING:
    from moorage.client import Client

log = logging.getLogger(__name__)

#: Seconds of patience with a broker that is away.
RETRY_FOR = 20.0
#: Marks that may be under way at once, each a few seconds: a person marks some tasks, not thousands.
_under_way = threading.BoundedSemaphore(256)
#: Seconds that a lease is looked after: longer than a trigger's poll, and the silence after it.
LOOK_AFTER_S = 45.0
#: Seconds without a watcher before `unwatch` is said again; a watcher is heard every 2 s.
QUIET_S = 6.0
#: Seconds between two looks.
LOOK_EVERY_S = 1.0
_OVER = (LeaseState.STOPPING, LeaseState.ENDED)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any) -> None:
    """`previous_state` is None only for what a person did, in the API server."""
    if previous_state is None:
        marked(task_instance)


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    """The same for *Mark as success*."""
    if previous_state is None:
        marked(task_instance)


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    """The same for *Mark as skipped*."""
    if previous_state is None:
        marked(task_instance)


def marked(task_instance: Any) -> None:
    """Let the task's lease go, in a thread: a request of Airflow's must not wait for the broker."""
    if not (os.environ.get(settings.TOKEN) or os.environ.get(settings.TOKEN_FILE)):
        return
    from moorage.airflow.labels import owner

    labels = owner(task_instance)
    if not _under_way.acquire(blocking=False):
        log.warning("Too many tasks are marked at once; the lease of %s is left to its trigger.", labels)
        return
    threading.Thread(target=_let_go, args=(labels,), name="moorage-let-go", daemon=True).start()


def _let_go(labels: Mapping[str, str]) -> None:
    from moorage.client import Client

    try:
        where = settings.connection()
        with Client(where.url, where.token, retry_for=RETRY_FOR) as api:
            leases = [view.lease.id for view in api.find(labels, live=True)]
            for lease in leases:
                api.unwatch(lease, _watcher())
            for lease in leases:
                _look_after(api, lease)
    except (MoorageError, ValueError) as error:
        log.warning("The lease of %s could not be let go: %s", labels, error)
    finally:
        _under_way.release()


def _look_after(api: Client, lease: str) -> None:
    """Until the lease is released: say it again when its last watcher falls silent."""
    until, heard, quiet_since = time.monotonic() + LOOK_AFTER_S, None, time.monotonic()
    while (now := time.monotonic()) < until and (view := api.get(lease)).lease.state not in _OVER:
        if view.lease.owner_heard != heard:
            heard, quiet_since = view.lease.owner_heard, now
        elif now - quiet_since > QUIET_S:
            api.unwatch(lease, _watcher())
            quiet_since = now
        time.sleep(LOOK_EVERY_S)


def _watcher() -> str:
    return f"airflow-user-{new_id()}"
