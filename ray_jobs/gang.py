# ruff: noqa: T201 - a script prints.
"""A gang of GPUs on a long-lived Ray cluster that `moorage ray-autoscaler` serves.

    python ray_jobs/gang.py --address HOST:PORT

Asks for a placement group whose bundles come all together, in one rack; says where each bundle is and which devices it
sees; works for a few seconds, and gives everything back.
"""

from __future__ import annotations

import argparse
import os
import time

import ray
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import moorage.ray


@ray.remote
def work(seconds: float) -> dict[str, str]:
    """One bundle's work."""
    time.sleep(seconds)
    here = ray.get_runtime_context().get_node_id()
    labels = next(node["Labels"] for node in ray.nodes() if node["NodeID"] == here)
    return {
        "node": labels.get("moorage.io/node", here[:8]),
        "rack": labels.get("moorage.io/rack", "-"),
        "devices": ",".join(sorted(os.environ.get("CUDA_VISIBLE_DEVICES", "none").split(","))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="auto", help="address of the Ray head, host:port")
    parser.add_argument("--bundles", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=2, help="of each bundle")
    parser.add_argument("--topology", default="rack", help="level that all bundles share")
    parser.add_argument("--seconds", type=float, default=3.0, help="of work")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds to wait for the gang")
    options = parser.parse_args()

    ray.init(options.address, log_to_driver=True)
    began = time.monotonic()
    bundle = {"GPU": options.gpus, "CPU": 1}
    group = moorage.ray.placement_group([bundle] * options.bundles, topology=options.topology, moorage=True)
    print(
        f"asked for {options.bundles} x {options.gpus} GPUs in one {options.topology}: group {group.id.hex()}",
        flush=True,
    )
    try:
        ray.get(group.ready(), timeout=options.timeout)
        print(f"the gang is complete after {time.monotonic() - began:.1f} s", flush=True)
        tasks = [
            work.options(
                num_gpus=options.gpus,
                num_cpus=1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            ).remote(options.seconds)
            for index in range(options.bundles)
        ]
        for index, found in enumerate(ray.get(tasks)):
            print(f"bundle {index}: node {found['node']}, rack {found['rack']}, GPUs {found['devices']}", flush=True)
    finally:
        remove_placement_group(group)
    print("given back", flush=True)


if __name__ == "__main__":
    main()
