"""A broker under random verbs from several threads, until it is killed. Prints what was acknowledged."""

from __future__ import annotations

import random
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conformance import OPERATOR, PROCESS, RAY, SUBMITTER
from fake_agent import FakeAgent

from moorage.api.auth import Principal, Role
from moorage.api.errors import Conflict, Invalid, NotFound
from moorage.api.ids import new_id
from moorage.api.values import Submission
from moorage.broker import Broker
from moorage.core.job import Evidence, Phase, Progress
from moorage.core.policy import Policy, Pool
from moorage.core.request import Request

POLICY = Policy(pools=(Pool(name="p", price=Decimal("3.33333")),), stop_grace_s=0.1, retry_first_s=0.1)
NODES = 3


def say(word: str, *values: str) -> None:
    sys.stdout.write(" ".join((word, *values)) + "\n")
    sys.stdout.flush()


def submit(broker: Broker, dice: random.Random) -> None:
    api = broker.acting(SUBMITTER)
    client_id = new_id()
    job, workers = dice.choice([(PROCESS, (1, 1)), (RAY, (1, 3)), (RAY, (2, 2))])
    request = Request(workers=workers, gpus_per_worker=dice.choice([1, 2]))
    said = Submission(owner={"name": client_id}, request=request, job=job, client_id=client_id)
    say("submitted", client_id, api.submit(said).lease.id)


def disturb(broker: Broker, dice: random.Random) -> None:
    """Something that an owner or operator does to a random lease or node."""
    owner, operator = broker.acting(SUBMITTER), broker.acting(OPERATOR)
    live = owner.find({}, live=True, limit=50)
    if len(live) < 20:
        submit(broker, dice)
        return
    lease = dice.choice(live).lease
    match dice.randrange(8):
        case 0 | 1 | 2:
            owner.release(lease.id, "x", new_id(), force=dice.random() < 0.5)
            say("released", lease.id)
        case 3:
            owner.unwatch(lease.id, "w")
        case 4:
            operator.priority(lease.id, dice.randrange(5), new_id())
        case 5:
            owner.note(lease.id, {"n": str(dice.randrange(1000))})
        case 6:
            pool = Pool(name="p", price=Decimal(dice.randrange(1, 9)))
            operator.apply_policy(replace(POLICY, pools=(pool,)), new_id())
        case 7:
            operator.cordon(f"n{dice.randrange(NODES)}", False, new_id())
            if dice.random() < 0.2:
                operator.lose(f"n{dice.randrange(NODES)}", new_id())


def renew(broker: Broker, dice: random.Random) -> None:
    for view in broker.acting(OPERATOR).find({}, live=True, limit=50):
        lease = view.lease
        who = Principal(name="t", role=Role.TRAINER, lease=lease.id, epoch=lease.epoch)
        said = Progress(phase=dice.choice(list(Phase)), step=dice.randrange(100))
        with suppress(Conflict):
            broker.acting(who).renew(lease.id, lease.epoch, said)


def be_agent(agent: FakeAgent, dice: random.Random) -> None:
    agent.step()
    for allocation in list(agent.tasks):
        if dice.random() < 0.1:
            agent.end(allocation, Evidence(exit_code=dice.choice([0, 0, 1, None])))
    if dice.random() < 0.02:
        agent.die()


def forever(run, *arguments: object) -> threading.Thread:  # type: ignore[no-untyped-def]
    def loop() -> None:
        dice = random.Random()
        while True:
            with suppress(Conflict, Invalid, NotFound):
                run(*arguments, dice)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread


def main(database: str) -> None:
    broker = Broker.open(f"sqlite:///{database}", policy=POLICY)
    broker.start()
    for number in range(NODES):
        who = Principal(name=f"n{number}", role=Role.AGENT, node=f"n{number}")
        agent = FakeAgent(lambda who=who: broker.acting(who), f"n{number}", 4)
        agent.incarnation = new_id()
        forever(be_agent, agent)
    threads = [forever(disturb, broker), forever(disturb, broker), forever(renew, broker)]
    say("ready")
    threads[0].join(timeout=60)


if __name__ == "__main__":
    main(sys.argv[1])
