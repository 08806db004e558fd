"""Who may call what: one table, looked up before every call. Nothing else in the broker asks for roles."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from moorage.api.auth import Principal, Role
from moorage.api.errors import Denied
from moorage.api.protocols import Api
from moorage.broker.keeper import Keeper
from moorage.core.lease import Lease


class Scope(StrEnum):
    """What else must fit."""

    #: Nothing.
    ANY = "any"
    #: The lease is of the submitter's team (others see and touch all). Its id may be a prefix.
    LEASE = "lease"
    #: The node is the agent's.
    NODE = "node"
    #: Lease and epoch are the attempt's.
    ATTEMPT = "attempt"


@dataclass(frozen=True, slots=True)
class Rule:
    roles: frozenset[Role]
    scope: Scope = Scope.ANY


_READ = frozenset({Role.VIEWER, Role.SUBMITTER, Role.OPERATOR})
_OWN = frozenset({Role.SUBMITTER, Role.OPERATOR})
_SEE = frozenset({Role.VIEWER, Role.OPERATOR})
_OPERATE = frozenset({Role.OPERATOR})
_AGENT = frozenset({Role.AGENT})

#: Method -> who may call it.
TABLE: Mapping[str, Rule] = {
    "put_code": Rule(_OWN),
    "get_code": Rule(_OWN | _AGENT),
    "submit": Rule(_OWN),
    "run": Rule(_OWN, Scope.LEASE),
    "get": Rule(_READ, Scope.LEASE),
    "find": Rule(_READ),
    "watch": Rule(_OWN, Scope.LEASE),
    "unwatch": Rule(_OWN, Scope.LEASE),
    "resize": Rule(_OWN, Scope.LEASE),
    "release": Rule(_OWN, Scope.LEASE),
    "give_back": Rule(_OWN, Scope.LEASE),
    "note": Rule(_OWN, Scope.LEASE),
    "logs": Rule(_READ, Scope.LEASE),
    "events": Rule(_READ, Scope.LEASE),
    "ledger": Rule(_READ, Scope.LEASE),
    "explain": Rule(_READ, Scope.LEASE),
    "what_if": Rule(_READ),
    "renew": Rule(frozenset({Role.TRAINER}), Scope.ATTEMPT),
    "report": Rule(_AGENT, Scope.NODE),
    "orders": Rule(_AGENT, Scope.NODE),
    "put_logs": Rule(_AGENT, Scope.NODE),
    "fleet": Rule(_SEE),
    "cordon": Rule(_OPERATE),
    "drain": Rule(_OPERATE),
    "lose": Rule(_OPERATE),
    "priority": Rule(_OPERATE, Scope.LEASE),
    "freeze": Rule(_OPERATE),
    "policy": Rule(_READ),
    "apply_policy": Rule(_OPERATE),
    "policy_history": Rule(_SEE),
    "make_token": Rule(_OPERATE),
    "tokens": Rule(_OPERATE),
    "revoke_token": Rule(_OPERATE),
}


@cache
def _signature(method: str) -> inspect.Signature:
    return inspect.signature(getattr(Api, method))


class Acting:
    """All of `Api` for one principal. Methods come from the table, so one that is not in it cannot be called."""

    def __init__(self, keeper: Keeper, verbs: Mapping[str, Callable[..., Any]], who: Principal) -> None:
        self._keeper, self._verbs, self._who = keeper, verbs, who

    def __getattr__(self, method: str) -> Callable[..., Any]:
        rule = TABLE.get(method)
        if rule is None:
            raise AttributeError(method)

        def call(*positional: Any, **named: Any) -> Any:
            bound = _signature(method).bind(None, *positional, **named)
            arguments = dict(list(bound.arguments.items())[1:])
            self._check(method, rule, arguments)
            return self._verbs[method](self._who, **arguments)

        return call

    def _check(self, method: str, rule: Rule, arguments: dict[str, Any]) -> None:
        """Raises `Denied`; writes the whole id of a lease into the arguments."""
        if self._who.role not in rule.roles:
            allowed = ", ".join(sorted(rule.roles))
            raise Denied(f"{self._who.name} is {self._who.role}: {method} is for {allowed}")
        match rule.scope:
            case Scope.ANY:
                return
            case Scope.LEASE:
                if arguments.get("lease") is not None:
                    arguments["lease"] = self._own(self._keeper.resolve(arguments["lease"])).id
            case Scope.NODE:
                self._check_node(arguments["report"].node if method == "report" else arguments["node"])
            case Scope.ATTEMPT:
                self._check_attempt(arguments["lease"], arguments["epoch"])

    def _own(self, lease: Lease) -> Lease:
        if self._who.role is Role.SUBMITTER and lease.team != self._who.team:
            raise Denied(f"lease {lease.id} is of team {lease.team}, {self._who.name} of team {self._who.team}")
        return lease

    def _check_node(self, node: str) -> None:
        if self._who.node is not None and self._who.node != node:
            raise Denied(f"{self._who.name} speaks for node {self._who.node}, not for {node}")

    def _check_attempt(self, lease: str, epoch: int) -> None:
        if (self._who.lease, self._who.epoch) != (lease, epoch):
            raise Denied(f"{self._who.name} may renew only its own lease and attempt, not attempt {epoch} of {lease}")
