"""Everything of Ray that Ray does not promise to keep, in one place. Pinned to ray==2.60.*; contract tests cover it."""

from __future__ import annotations


def find_node(address: str, label: str, value: str) -> str | None:
    """Hex id of the node of the cluster at `address` that is alive and has this label. None: there is none."""
    from ray._raylet import GcsClient

    infos = GcsClient(address=address).get_all_node_info(timeout=20)
    for node, info in infos.items():
        # 0 is ALIVE in GcsNodeInfo.GcsNodeState.
        if info.state == 0 and info.labels.get(label) == value:
            return str(node.hex())
    return None


def drain_node(address: str, node_id: str, deadline_ms: int, message: str) -> str:
    """Tell Ray that a node is preempted at `deadline_ms` (Unix milliseconds); why it refused, "" if it did not.

    The node takes no new work, and Ray Train checkpoints. It does not exit by itself. Calling again with an earlier
    deadline brings it forward.
    """
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = GcsClient(address=address).drain_node(node_id, reason, message, deadline_ms)
    return "" if accepted else (why or "no reason given")
