"""The broker: opened on a database, bound to principals, run by two threads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from moorage.api.auth import Principal
from moorage.api.protocols import Api
from moorage.broker import load, lock, migrate
from moorage.broker.authorize import TABLE, Acting
from moorage.broker.clock import Clock, HearingClock, SteadyClock, SystemClock
from moorage.broker.keeper import Keeper
from moorage.broker.lease_verbs import LeaseVerbs
from moorage.broker.logs import Logs
from moorage.broker.loop import Loop
from moorage.broker.node_verbs import NodeVerbs, TrainVerbs
from moorage.broker.ops_verbs import OpsVerbs
from moorage.broker.orders import Terms
from moorage.broker.store import Store
from moorage.broker.tokens import Tokens
from moorage.core.policy import Policy

#: Rounds of `decide` that `settle` makes at most.
ROUNDS = 50


class Broker:
    """The only owner of state. Make one with `Broker.open`."""

    def __init__(self, keeper: Keeper, held: lock.Lock) -> None:
        self._keeper, self._lock = keeper, held
        self._loop = Loop(keeper)
        self._tokens = Tokens(keeper)
        self._verbs = _verbs(keeper, self._tokens)
        keeper.refresh_orders(keeper.memory.state.nodes)

    @classmethod
    def open(
        cls,
        url: str = "sqlite:///moorage.db",
        *,
        policy: Policy | None = None,
        clock: Clock | None = None,
        public_url: str | None = None,
        mlflow_uri: str | None = None,
        logs: Path | None = None,
        wait: bool = False,
        wait_timeout: float | None = None,
    ) -> Broker:
        """Take the writer's lock, bring the schema up to date and read the state.

        Args:
            url: SQLAlchemy URL of SQLite or PostgreSQL; ``sqlite://`` is a database in memory.
            policy: for a database that has none yet.
            public_url: where agents and jobs reach the broker.
            mlflow_uri: tracking URI that jobs are given.
            logs: folder of job logs; by default beside the SQLite database, else ``moorage.logs``.
            wait: stand by until the present writer is gone, instead of failing; at most `wait_timeout` seconds.

        Raises:
            Invalid: `url` is no URL of such a database.
            Unavailable: the database cannot be reached or read; names it.
            Conflict: another broker writes the database, or its schema is newer than this version.
        """
        store = Store(url)
        with store.opening():
            held = lock.take(store, wait, wait_timeout)
            try:
                migrate.upgrade(store.engine)
                keeper = _keeper(store, policy, clock or SystemClock(), public_url, mlflow_uri, logs)
                return cls(keeper, held)
            except BaseException:
                held.release()
                raise

    def start(self) -> None:
        """Begin to tick and to decide."""
        self._loop.start()

    def alive(self) -> bool:
        """Whether it ticks and decides."""
        return self._loop.alive()

    def close(self) -> None:
        """Store what is in memory, and free the writer's lock. Long polls end."""
        if self._keeper.closed:
            return
        self._loop.stop()
        try:
            if self._keeper.refusal is None:
                self._loop.tick()
        finally:
            self._keeper.close()
            self._keeper.store.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def acting(self, principal: Principal) -> Api:
        """All four protocols for this principal, authorization inside."""
        return cast(Api, Acting(self._keeper, self._verbs, principal))

    def authenticate(self, secret: str) -> Principal:
        """Who shows this secret. Raises `Denied`."""
        return self._tokens.authenticate(secret)

    def has_tokens(self) -> bool:
        """Whether any token was ever made."""
        return self._tokens.exist()

    def first_token(self) -> str | None:
        """An operator's token, if the database never had a token; it is shown this once."""
        return self._tokens.first()

    def listen(self, callback: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """See `api.Changes`."""
        return self._keeper.listen(callback)

    # --- without `start`, for tests and simulations

    def tick(self) -> None:
        """What happens each second."""
        self._loop.tick()
        self._loop.look_at_orders()

    def settle(self) -> None:
        """Decide until nothing changes any more."""
        for _ in range(ROUNDS):
            if not self._loop.decide():
                return


def _keeper(
    store: Store, policy: Policy | None, clock: Clock, public_url: str | None, mlflow_uri: str | None, logs: Path | None
) -> Keeper:
    boot, heard, written = load.claim(store, clock.now())
    steady = SteadyClock(clock, written)
    now = steady.now()
    memory = load.memory(store, boot, heard, load.policy(store, policy, now), now)
    terms = Terms(load.secret(store), public_url, mlflow_uri)
    return Keeper(store, memory, steady, HearingClock(clock, heard), terms, Logs(logs or _logs_of(store)))


def _logs_of(store: Store) -> Path:
    if store.in_memory:
        return Path(tempfile.mkdtemp(prefix="moorage-logs-"))
    beside = store.url.get_backend_name() == "sqlite"
    return Path(f"{store.url.database}.logs") if beside else Path("moorage.logs")


def _verbs(keeper: Keeper, tokens: Tokens) -> Mapping[str, Callable[..., Any]]:
    """Method -> what carries it out."""
    rooms = (LeaseVerbs(keeper), TrainVerbs(keeper), NodeVerbs(keeper, tokens), OpsVerbs(keeper, tokens))
    return {method: next(getattr(room, method) for room in rooms if hasattr(room, method)) for method in TABLE}
