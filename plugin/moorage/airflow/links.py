"""The button on a task's page that opens its lease on the *GPU fleet* page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

PREFIX = "/moorage"


def under_base(path: str) -> str:
    """The path as a browser needs it: below the path of ``[api] base_url``."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + path


def lease_url(lease: str | None) -> str:
    """Page of a lease, or of the fleet."""
    return under_base(f"{PREFIX}/leases/{lease}" if lease else f"{PREFIX}/")


class FleetLink(BaseOperatorLink):
    """Airflow asks in the worker when the task ends; operators also push the XCom as soon as they know the lease."""

    name = "GPU lease"

    @property
    def xcom_key(self) -> str:
        return "moorage_lease_link"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ARG002 (Airflow names it)
        return lease_url(getattr(operator, "lease_id", None))
