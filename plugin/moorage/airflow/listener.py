"""What the API server does when a person marks a task: its lease is let go, whether or not its trigger runs yet.

Airflow tells a trigger only if it runs already; a task that is marked while its trigger waits for a triggerer, or while
a worker still submits, would leave its lease behind. Like `LeaseTrigger.on_kill` this says `unwatch`, no more.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

from airflow.listeners import hookimpl

from moorage import settings
from moorage.api.errors import MoorageError
from moorage.api.ids import new_id

log = logging.getLogger(__name__)

#: Seconds of patience with a broker that is away.
RETRY_FOR = 20.0
#: Marks that may be under way at once: a person marks some tasks, not thousands.
_under_way = threading.BoundedSemaphore(64)


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
            for view in api.find(labels, live=True):
                api.unwatch(view.lease.id, f"airflow-user-{new_id()}")
    except (MoorageError, ValueError) as error:
        log.warning("The lease of %s could not be let go: %s", labels, error)
    finally:
        _under_way.release()
