"""The *GPU fleet* page inside Airflow. Every Airflow process imports this: it stays light, and connects to nothing."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from moorage.airflow.links import PREFIX, under_base

#: ``/plugin/moorage`` is the page's address inside Airflow.
ROUTE = "moorage"


class MooragePlugin(AirflowPlugin):
    """Mounts the operators' page of `moorage.web` behind Airflow's own users, and puts it into the menu."""

    name = "moorage"

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Only the API server asks for it, so only there FastAPI and the page are imported."""
        from moorage.airflow.security import create_app

        return [{"app": create_app(), "url_prefix": PREFIX, "name": "Moorage"}]

    @cached_property
    def listeners(self) -> list[Any]:  # type: ignore[override]
        """Lets a lease go whose task a person marked."""
        from moorage.airflow import listener

        return [listener]

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The menu entry; browsers use these addresses as they are."""
        return [
            {
                "name": "GPU fleet",
                "href": under_base(f"{PREFIX}/"),
                "destination": "nav",
                "category": "browse",
                "url_route": ROUTE,
                "icon": under_base(f"{PREFIX}/icon.svg"),
            }
        ]
