"""An agent of a node without hardware: does what it is told, and can be told to lie, be silent, or die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from moorage.api.values import NodeReport, Notice, Order, Orders, Task, TaskPhase, Want
from moorage.core.fleet import Gpu
from moorage.core.job import Evidence
from moorage.core.lease import AllocationRole

if TYPE_CHECKING:
    from moorage.api.protocols import Api


class FakeAgent:
    """Follows orders at each `step`: starts what it should run, ends what it should not."""

    def __init__(self, find: Callable[[], Api], node: str, gpus: int = 4, labels: dict[str, str] | None = None) -> None:
        self.find, self.node, self.labels = find, node, labels or {}
        self.gpus = tuple(
            Gpu(index=i, uuid=f"{node}-{i}", model="H100", memory=80 << 30, healthy=True) for i in range(gpus)
        )
        self.tasks: dict[str, Task] = {}
        self.incarnation = "1"
        self.notice: Notice | None = None
        self.orders = Orders(revision=0, orders=())

    @property
    def api(self) -> Api:
        """The broker that is there now."""
        return self.find()

    def report(self) -> Orders:
        """Say what it has."""
        self.orders = self.api.report(
            NodeReport(
                node=self.node,
                incarnation=self.incarnation,
                version="0.1.0",
                gpus=self.gpus,
                cpus=16,
                memory=64 << 30,
                labels=self.labels,
                tasks=tuple(self.tasks.values()),
                notice=self.notice,
                orders_seen=self.orders.revision or None,
            )
        )
        return self.orders

    def step(self) -> None:
        """Report, do as told, report again."""
        self.report()
        wanted = {order.allocation: order for order in self.orders.orders if order.want is not Want.STOP}
        self.tasks = {id_: task for id_, task in self.tasks.items() if id_ in wanted}
        for id_, order in wanted.items():
            self.tasks[id_] = self._task(order, self.tasks.get(id_))
        self.report()

    def _task(self, order: Order, known: Task | None) -> Task:
        if known is not None and known.phase is TaskPhase.EXITED:
            return known
        task = known or Task(allocation=order.allocation, lease=order.lease, epoch=order.epoch, phase=TaskPhase.RUNNING)
        if order.role is AllocationRole.HEAD:
            return replace(task, address=f"{self.node}:6379", driver=task.driver or order.driver)
        return task

    def order(self, allocation: str) -> Order:
        return next(order for order in self.orders.orders if order.allocation == allocation)

    def end(self, allocation: str, evidence: Evidence) -> None:
        """Its process ended like this; said with the next report."""
        self.tasks[allocation] = replace(self.tasks[allocation], phase=TaskPhase.EXITED, evidence=evidence)

    def die(self) -> None:
        """Everything on it ends, and a new agent starts with nothing."""
        self.tasks, self.incarnation = {}, self.incarnation + "'"

    def set_notice(self, at: datetime, deadline: datetime | None) -> None:
        self.notice = Notice(deadline=deadline, source="test", at=at)
