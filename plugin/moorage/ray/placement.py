"""Placement groups that are bound to a lease: the one helper that a Ray user needs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from moorage.core.invalid import Invalid
from moorage.core.request import CapacityType, Topology
from moorage.ray.demand import CAPACITY, GANG, PREFERRED, PRIORITY, REQUIRED

_LABEL_VALUE = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?")


def placement_group(
    bundles: Sequence[Mapping[str, float]],
    *,
    strategy: str = "PACK",
    key: str | None = None,
    topology: Topology | str | None = None,
    priority: int | None = None,
    capacity: CapacityType | str | None = None,
    name: str = "",
    lifetime: str | None = None,
    moorage: bool | None = None,
) -> Any:
    """A `ray.util.placement_group` whose GPUs are leased for it, all together, and for nobody else.

    Args:
        bundles: resources of each bundle, as Ray takes them.
        key: names the gang; tasks and groups with the same key share its nodes. None: a new one.
        topology: the level that all bundles must share, for example ``"rack"``, or a `Topology`. None: as the hook was
            told (one rack, if one has room).
        priority: higher goes first; not negative. None: the hook's.
        capacity: the least steady capacity that will do. None: the hook's.
        moorage: whether to bind it to a lease; without the hook no node would ever match. None: if the hook has left
            word in the cluster. False: Ray's own placement group; what is said about leases is left out.

    Raises:
        Invalid: names the argument that can never be right.
    """
    from ray.util.placement_group import placement_group as ray_placement_group

    labels = gang_labels(key=key, topology=topology, priority=priority, capacity=capacity)
    plain = [dict(bundle) for bundle in bundles]
    if moorage is None:
        from moorage.ray.internals import served

        moorage = served()
    if not moorage:
        return ray_placement_group(plain, strategy=strategy, name=name, lifetime=lifetime)
    selectors = [labels] * len(plain)
    return ray_placement_group(plain, strategy=strategy, name=name, lifetime=lifetime, bundle_label_selector=selectors)


def gang_labels(
    *,
    key: str | None = None,
    topology: Topology | str | None = None,
    priority: int | None = None,
    capacity: CapacityType | str | None = None,
) -> dict[str, str]:
    """The label selector that binds tasks, actors and placement groups to one lease. Raises `Invalid`."""
    wish = Topology(required=topology) if isinstance(topology, str) else topology or Topology()
    if priority is not None and priority < 0:
        raise Invalid("priority", priority, "must not be negative: Ray's labels begin with a letter or a digit")
    said = {
        GANG: key or f"g{secrets.token_hex(6)}",
        REQUIRED: wish.required,
        PREFERRED: wish.preferred,
        PRIORITY: None if priority is None else str(priority),
        CAPACITY: None if capacity is None else str(_capacity(capacity)),
    }
    labels = {label: value for label, value in said.items() if value is not None}
    for label, value in labels.items():
        if not _LABEL_VALUE.fullmatch(value):
            raise Invalid(
                label, value, "use at most 63 letters, digits, '-', '_' and '.', a letter or digit at both ends"
            )
    return labels


def _capacity(value: CapacityType | str) -> CapacityType:
    try:
        return CapacityType(value)
    except ValueError:
        raise Invalid("capacity", value, f"give one of {', '.join(CapacityType)}") from None
