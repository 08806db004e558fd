"""Prometheus metrics of the agent, read from the board when scraped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from moorage.agent.board import Board
from moorage.agent.config import AgentConfig
from moorage.agent.reporting import Outage


class Collector:
    """Made anew at each scrape, so that nothing can be stale."""

    def __init__(self, board: Board, node: str, gpus: int, outages: dict[str, Outage]) -> None:
        self._board, self._node, self._gpus, self._outages = board, node, gpus, outages

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        gpus = GaugeMetricFamily("moorage_agent_gpus", "GPUs that this node reports.", labels=["node"])
        gpus.add_metric([self._node], self._gpus)
        tasks = GaugeMetricFamily("moorage_agent_tasks", "Allocations on this node.", labels=["node", "phase"])
        for phase, count in Counter(task.phase.value for task in self._board.tasks).items():
            tasks.add_metric([self._node, phase], count)
        failures = CounterMetricFamily(
            "moorage_agent_call_failures", "Calls to the broker that failed.", labels=["node", "call"]
        )
        for name, outage in self._outages.items():
            failures.add_metric([self._node, name], outage.failures)
        yield from (gpus, tasks, failures, self._notice())

    def _notice(self) -> Any:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            "moorage_agent_notice_deadline_seconds",
            "Unix time at which the cloud takes this node; absent without a firm notice.",
            labels=["node"],
        )
        notice = self._board.notice
        if notice is not None and notice.deadline is not None:
            family.add_metric([self._node], notice.deadline.timestamp())
        return family


def serve(config: AgentConfig, collector: Collector) -> Callable[[], None]:
    """Serve on the configured port, if there is one; returns how to stop. Raises OSError if the port is taken."""
    if config.metrics_port is None:
        return lambda: None
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(config.metrics_port, config.metrics_address, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return stop
