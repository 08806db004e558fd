"""Where the broker is: an Airflow connection of type ``moorage``, else the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from moorage import settings

if TYPE_CHECKING:
    from moorage.client import AsyncClient, Client

#: Seconds that a task's call waits for a broker that is away, before it fails and Airflow retries the task.
RETRY_FOR = 60.0


class MoorageHook(BaseHook):
    """The broker's client. Connection: host is the URL, password the token.

    Without such a connection, MOORAGE_URL, MOORAGE_TOKEN and MOORAGE_TOKEN_FILE count.
    """

    conn_name_attr = "moorage_conn_id"
    default_conn_name = "moorage_default"
    conn_type = "moorage"
    hook_name = "Moorage"

    def __init__(self, moorage_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.moorage_conn_id = moorage_conn_id

    def get_conn(self) -> Client:
        """A client that waits up to a minute for a broker that is away."""
        from moorage.client import Client

        where = self.where()
        return Client(where.url, where.token, retry_for=RETRY_FOR)

    def where(self) -> settings.Connection:
        """The broker's URL and token."""
        try:
            return _where(self.get_connection(self.moorage_conn_id))
        except AirflowNotFoundException:
            return settings.connection()

    async def awhere(self) -> settings.Connection:
        """`where`, for a trigger's event loop."""
        try:
            return _where(await self.aget_connection(self.moorage_conn_id))
        except AirflowNotFoundException:
            return settings.connection()

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's *Test* button."""
        from moorage.api.errors import MoorageError

        try:
            with self.get_conn() as client:
                found = len(client.find({}, limit=1))
        except MoorageError as error:
            return False, str(error)
        return True, "The broker answers" + (", and knows leases." if found else ", and knows no lease yet.")


def async_client(where: settings.Connection, retry_for: float) -> AsyncClient:
    """The client for a trigger."""
    from moorage.client import AsyncClient

    return AsyncClient(where.url, where.token, retry_for=retry_for)


def _where(connection: Any) -> settings.Connection:
    """From a connection with a URL as host, or host, port and schema as a connection URI splits them."""
    host = connection.host or ""
    if "://" in host:
        return settings.connection(host.rstrip("/"), connection.password)
    if not host:
        return settings.connection(None, connection.password)
    port = f":{connection.port}" if connection.port else ""
    return settings.connection(f"{connection.schema or 'http'}://{host}{port}", connection.password)
