"""Errors by who is at fault. Not fitting is not an error: it is a lease that waits, with reasons."""

from __future__ import annotations

from moorage.core.invalid import Invalid

__all__ = ["Conflict", "Denied", "Invalid", "MoorageError", "NotFound", "Unavailable"]


class MoorageError(Exception):
    """Base of the errors below. `Invalid` (a ValueError of core) stands beside it."""


class NotFound(MoorageError):
    """There is no such lease, node, code or log."""


class Conflict(MoorageError):
    """The state does not allow it: a stale epoch, an ended lease, a node that is another's."""


class Denied(MoorageError):
    """No token, a wrong one, too weak a role, or another team's lease."""


class Unavailable(MoorageError):
    """The broker cannot be reached, or cannot answer now; try again. Names the address."""
