"""Environment variables and files by which an agent finds its processes again."""

from __future__ import annotations

from moorage import settings

#: In the environment of everything that an agent starts: the node's name, and the agent's state folder.
NODE_MARK = "MOORAGE_AGENT_NODE"
HOME_MARK = "MOORAGE_AGENT_HOME"
ALLOCATION_MARK = settings.ALLOCATION

#: In an allocation's folder.
RECORD = "task.json"
CHILD = "child.json"
EXIT = "exit.json"
MARKER = "marker.json"
TOKEN = "ray.token"
RAY_LOG = "ray.log"
WORK = "work"
#: Log segments: this prefix and the offset of their first byte.
LOG = "log."

#: Bytes of a completion marker that are taken.
MARKER_BYTES = 64 << 10
#: Last bytes and lines of a log that go into evidence.
TAIL_BYTES = 4096
TAIL_LINES = 40
