"""Tokens: random secrets, stored hashed; and an attempt's tokens, which are signed and stored nowhere.

A secret has 256 random bits, so one round of SHA-256 is enough: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, update

from moorage.api.auth import Principal, Role
from moorage.api.errors import Conflict, Denied, Invalid, NotFound
from moorage.api.ids import new_id
from moorage.api.values import EventKind, TokenView
from moorage.broker import reads, schema
from moorage.broker.draft import Draft
from moorage.broker.keeper import Keeper
from moorage.broker.store import stamp

#: Roles that `make_token` gives out; a trainer's tokens are signed by the broker for one attempt.
GIVEN = (Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.AGENT)
FIRST = "first"


@dataclass(frozen=True, slots=True)
class _Known:
    view: TokenView
    hash: str


class Tokens:
    """All tokens in memory, by hash."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._load()

    def _load(self) -> None:
        self._all = [_known(row) for row in reads.tokens(self._keeper.store)]
        self._by_hash = {known.hash: known for known in self._all}

    def exist(self) -> bool:
        """Whether any was ever made."""
        return bool(self._all)

    def views(self) -> list[TokenView]:
        return [known.view for known in self._all]

    def authenticate(self, secret: str) -> Principal:
        """Who shows this secret. Raises `Denied`."""
        if secret.startswith("mtr_"):
            return self._trainer(secret)
        known = self._by_hash.get(_hash(secret))
        if known is None or known.view.revoked_at is not None:
            raise Denied("the token is not known here, or was revoked: ask an operator for a new one")
        return Principal(name=known.view.name, role=Role(known.view.role), team=known.view.team, node=known.view.node)

    def _trainer(self, secret: str) -> Principal:
        lease, _, rest = secret.removeprefix("mtr_").partition(".")
        epoch, _, signed = rest.partition(".")
        if not epoch.isascii() or not epoch.isdigit() or len(epoch) > 9:
            raise Denied("the attempt's token is malformed")
        if not hmac.compare_digest(signed, self._keeper.terms.sign("trainer", lease, int(epoch))):
            raise Denied("the attempt's token was not made by this broker")
        return Principal(name=f"attempt {epoch} of {lease}", role=Role.TRAINER, lease=lease, epoch=int(epoch))

    def make(self, who: str, name: str, role: Role, team: str | None, node: str | None) -> str:
        """Make and store one; returns the secret, this once."""
        _check(name, role, team, node)
        if role is Role.AGENT and any(_is_agent(known.view, name) for known in self._all):
            raise Conflict(f"an agent's token {name} exists: revoke it, or choose another name")
        secret = f"moo_{secrets.token_urlsafe(32)}"
        with self._keeper.change(who) as draft:
            row = {
                "id": new_id(),
                "name": name,
                "role": str(role),
                "team": team,
                "node": node,
                "hash": _hash(secret),
                "created_at": stamp(draft.now),
            }
            draft.statements.append(insert(schema.token).values(**row))
            draft.tell(EventKind.TOKEN, f"{who} made token {name} for {role}")
        self._load()
        return secret

    def first(self) -> str | None:
        """An operator's token if none was ever made."""
        with self._keeper.lock:
            return None if self.exist() else self.make("broker", FIRST, Role.OPERATOR, None, None)

    def revoke(self, who: str, token_id: str) -> None:
        if not any(known.view.id == token_id for known in self._all):
            raise NotFound(f"there is no token {token_id}")
        with self._keeper.change(who) as draft:
            table = schema.token
            unrevoked = (table.c.id == token_id) & table.c.revoked_at.is_(None)
            draft.statements.append(update(table).where(unrevoked).values(revoked_at=stamp(draft.now)))
            draft.tell(EventKind.TOKEN, f"{who} revoked token {token_id}")
        self._load()

    def bind(self, draft: Draft, who: Principal, node: str) -> bool:
        """An agent's token that names no node becomes this node's at its first report. True: reload after the commit.

        Raises:
            Conflict: it was bound to another node meanwhile.
        """
        known = next((k.view for k in self._all if _is_agent(k.view, who.name)), None)
        if who.node is not None or known is None or known.node == node:
            return False
        if known.node is not None:
            raise Conflict(f"token {who.name} belongs to node {known.node}: make one for {node}")
        draft.statements.append(update(schema.token).where(schema.token.c.id == known.id).values(node=node))
        draft.tell(EventKind.TOKEN, f"token {who.name} belongs to node {node} from now on", node=node)
        return True

    def reload(self) -> None:
        self._load()


def _is_agent(view: TokenView, name: str) -> bool:
    return view.name == name and view.role == Role.AGENT and view.revoked_at is None


def _check(name: str, role: Role, team: str | None, node: str | None) -> None:
    if not 0 < len(name) <= 200:
        raise Invalid("name", name, "give 1 to 200 characters")
    if role not in GIVEN:
        raise Invalid("role", str(role), f"choose one of {', '.join(GIVEN)}")
    if role is Role.SUBMITTER and not team:
        raise Invalid("team", team, "a submitter's token needs the team that pays")
    if team is not None and role is not Role.SUBMITTER:
        raise Invalid("team", team, "only a submitter's token has a team")
    if node is not None and role is not Role.AGENT:
        raise Invalid("node", node, "only an agent's token has a node")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _known(row: Any) -> _Known:
    view = TokenView(
        id=row.id,
        name=row.name,
        role=row.role,
        team=row.team,
        node=row.node,
        created_at=datetime.fromisoformat(row.created_at),
        revoked_at=datetime.fromisoformat(row.revoked_at) if row.revoked_at else None,
    )
    return _Known(view, row.hash)
