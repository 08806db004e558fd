"""``python -m moorage.ray.drain``: tell a lease's Ray cluster that one raylet is going. Run by the agent of its node.

Exit codes: 0 told, 3 no such raylet alive, 4 Ray refused.
"""

from __future__ import annotations

import argparse
import sys

from moorage.ray.cluster import ALLOCATION_LABEL


def main(argv: list[str] | None = None) -> int:
    """Drain by label; authentication comes from RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH."""
    options = _parser().parse_args(argv)
    from moorage.ray.internals import drain_node, find_node

    node = find_node(options.address, ALLOCATION_LABEL, options.allocation)
    if node is None:
        print(f"no raylet of allocation {options.allocation} is alive at {options.address}", file=sys.stderr)  # noqa: T201
        return 3
    refused = drain_node(options.address, node, options.deadline_ms, "the node is going")
    if refused:
        print(f"Ray refused to drain {node}: {refused}", file=sys.stderr)  # noqa: T201
        return 4
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m moorage.ray.drain", description=__doc__)
    parser.add_argument("--address", required=True, help="the Ray head, host:port")
    parser.add_argument("--allocation", required=True, help="value of the raylet's label moorage.io/allocation")
    parser.add_argument("--deadline-ms", required=True, type=int, help="when it is gone, Unix milliseconds")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
