"""The api over HTTP: `Client` for everybody, `AsyncClient` for an Airflow trigger."""

from moorage.client.asynchronous import AsyncClient
from moorage.client.synchronous import Client

__all__ = ["AsyncClient", "Client"]
