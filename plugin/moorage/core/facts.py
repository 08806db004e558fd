"""What policy says about a node from its labels: the agent never decides its pool, price or domains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moorage.core.fleet import Node
from moorage.core.invalid import Invalid
from moorage.core.policy import Policy, Pool

#: Free GPUs of a node are bits of one 64-bit word.
MOST_GPUS = 64


def describe(node: Node, policy: Policy) -> Node:
    """The node with pool, capacity type, prices and domains from the policy's matchers over its labels.

    Raises:
        Invalid: a device index that the engine cannot hold.
    """
    for gpu in node.gpus:
        if not 0 <= gpu.index < MOST_GPUS:
            raise Invalid("gpus.index", gpu.index, f"number the GPUs of a node from 0 to {MOST_GPUS - 1}")
    pool = pool_of(node.labels, policy)
    return replace(
        node,
        pool=pool.name,
        capacity=pool.capacity,
        price=pool.price,
        on_demand_price=pool.price if pool.on_demand_price is None else pool.on_demand_price,
        domains=domains_of(node.labels, policy),
    )


def pool_of(labels: Mapping[str, str], policy: Policy) -> Pool:
    """The first pool all of whose labels match; without one, ``default`` without a price."""
    for pool in policy.pools:
        if all(labels.get(key) == value for key, value in pool.match.items()):
            return pool
    return Pool(name="default")


def domains_of(labels: Mapping[str, str], policy: Policy) -> dict[str, str]:
    """Level -> domain, broadest level first; levels without a label are absent."""
    found = {}
    for level in policy.levels:
        value = next((labels[key] for key in level.labels if labels.get(key)), None)
        if value is not None:
            found[level.name] = value
    return found
