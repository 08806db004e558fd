"""The agent's threads, and its end: jobs outlive it and are found again by the next one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from moorage import __version__
from moorage.agent import inventory, metrics, notices
from moorage.agent.board import Board
from moorage.agent.bundle import CodeStore
from moorage.agent.config import AgentConfig
from moorage.agent.host import HomeLock, Host, StartLock, address_of
from moorage.agent.inventory import Inventory
from moorage.agent.logs import Shipper
from moorage.agent.reconcile import Reconciler
from moorage.agent.reporting import Broker, Poller, Reporter
from moorage.api.ids import new_id
from moorage.api.values import NodeReport, Notice, Task
from moorage.client import Client

log = logging.getLogger(__name__)

#: Seconds between passes: while something runs, and while nothing does.
BUSY_S, IDLE_S = 0.1, 0.5
#: Seconds for all threads to end; one in a long poll may take longer and is left behind.
JOIN_S = 1.0


def run(config: AgentConfig, stop: threading.Event) -> None:
    """Keep this node as the broker says until `stop` is set; what runs then goes on.

    Raises:
        Invalid: the state folder is in use, or this node's address cannot be found.
        OSError: the metrics port is taken, or the state folder cannot be written.
    """
    # Patience is the agent's own: it tries for ever, and says so once a minute.
    with Client(config.url, config.token, timeout=10, retry_for=0) as client:
        serve(config, client, stop)


def serve(config: AgentConfig, broker: Broker, stop: threading.Event) -> None:
    """`run` with any broker."""
    home = config.state_dir.resolve()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = HomeLock(home)
    try:
        with ThreadPoolExecutor(2, thread_name_prefix="moorage-code") as threads:
            host = Host(
                config=config,
                home=home,
                ip=address_of(config),
                code=CodeStore(home / "code", broker.get_code),
                threads=threads,
                lock=StartLock(),
            )
            _keep(host, broker, inventory.take(config), stop)
    finally:
        lock.release()


def _keep(host: Host, broker: Broker, has: Inventory, stop: threading.Event) -> None:
    config = host.config
    board = Board(_describer(config, has, new_id()))
    shipper = Shipper(broker, config.node)
    reporter = Reporter(broker, board, config.report_every_s)
    poller = Poller(broker, board, config.node)
    reconciler = Reconciler(host, board, shipper)
    reconciler.adopt()
    outages = {"report": reporter.outage, "orders": poller.outage}
    stop_metrics = metrics.serve(config, metrics.Collector(board, config.node, len(has.gpus), outages))
    watcher = notices.watcher(config, board.set_notice)
    threads = _start(stop, reporter.run, poller.run, shipper.run, watcher.run)
    log.info("agent of node %s: %d GPUs, broker %s", config.node, len(has.gpus), config.url)
    try:
        _loop(reconciler, board, stop)
    finally:
        stop.set()
        board.wake()
        stop_metrics()
        limit = time.monotonic() + JOIN_S
        for thread in threads:
            thread.join(max(0.0, limit - time.monotonic()))
    log.info("agent of node %s ends; its jobs go on", config.node)


def _loop(reconciler: Reconciler, board: Board, stop: threading.Event) -> None:
    news = 0
    while not stop.is_set():
        try:
            busy = reconciler.step()
        except OSError as error:
            # A full disk or a lost mount: what runs goes on, and the next pass may do better.
            log.exception("this pass failed: %s", error)
            busy = False
        news = board.wait_news(news, BUSY_S if busy else IDLE_S)


def _describer(
    config: AgentConfig, has: Inventory, incarnation: str
) -> Callable[[tuple[Task, ...], Notice | None, int | None], NodeReport]:
    def describe(tasks: tuple[Task, ...], notice: Notice | None, seen: int | None) -> NodeReport:
        return NodeReport(
            node=config.node,
            incarnation=incarnation,
            version=__version__,
            gpus=has.gpus,
            cpus=has.cpus,
            memory=has.memory,
            labels=config.labels,
            tasks=tasks,
            notice=notice,
            orders_seen=seen,
        )

    return describe


def _start(stop: threading.Event, *targets: Callable[[threading.Event], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=target, args=(stop,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    return threads
