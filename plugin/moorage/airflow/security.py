"""Who an Airflow user is to Moorage. All that Moorage uses of Airflow's user management is in this file.

An app that a plugin mounts is not guarded by Airflow: every request passes `authenticate`, which fails closed.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import PoolDetails
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from anyio.to_thread import run_sync
from fastapi import FastAPI, HTTPException, Request

from moorage import settings
from moorage.api.auth import Principal, Role
from moorage.api.errors import Denied
from moorage.client import Client

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

    from moorage.api.protocols import Api

#: Who may edit Airflow pools may operate the fleet.
POOL = PoolDetails(name="moorage")
#: What a viewer may call.
READS = frozenset(
    {"get", "find", "logs", "events", "ledger", "explain", "what_if", "fleet", "policy", "policy_history"}
)
#: A person waits for the page: seconds of patience with a broker that is away.
RETRY_FOR = 3.0


async def authenticate(request: Request) -> Principal:
    """The signed-in Airflow user: bearer token first, then the cookie, as Airflow's own routes do it.

    Raises:
        HTTPException: 401 or 403, as Airflow says it.
    """
    credentials = await bearer_scheme(request)
    user = await get_user(request, None, credentials)
    if user is None:
        raise HTTPException(401, "Not authenticated")
    role = await run_sync(role_of, user)
    return Principal(name=user.get_name(), role=role)


def role_of(user: BaseUser) -> Role:
    """Operator if the user may edit Airflow pools, else viewer. Views are no guard: some managers let viewers write."""
    may_edit = get_auth_manager().is_authorized_pool(method="PUT", details=POOL, user=user)
    return Role.OPERATOR if may_edit else Role.VIEWER


class Broker:
    """The broker, spoken to with the page's one token: MOORAGE_URL, MOORAGE_TOKEN or MOORAGE_TOKEN_FILE."""

    @cached_property
    def client(self) -> Client:
        """Made at the first request; connections are shared by all users."""
        where = settings.connection()
        return Client(where.url, where.token, retry_for=RETRY_FOR)

    def acting(self, principal: Principal) -> Api:
        """The api for this user, whose name goes to the audit log.

        The token is an operator's, so what a viewer may not do is refused here, not by the broker.
        """
        client = self.client.acting(principal)
        return client if principal.role is Role.OPERATOR else cast("Api", Reading(client))


class Reading:
    """The calls of an api that change nothing; any other is refused."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Any:
        if name in READS:
            return getattr(self._api, name)
        raise Denied(
            f"you may look at the GPU fleet, not change it ({name}): ask for a role that may edit Airflow pools"
        )


def create_app() -> FastAPI:
    """The page. Connects at the first request."""
    from moorage.web import create_app as create_page

    return create_page(Broker().acting, authenticate, api=False)
