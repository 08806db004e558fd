"""Touches the node: reports what it has, and starts, adopts, drains and stops what it is told."""

from moorage.agent.config import AgentConfig
from moorage.agent.names import NODE_MARK
from moorage.agent.run import run

__all__ = ["NODE_MARK", "AgentConfig", "run"]
