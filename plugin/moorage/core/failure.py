"""How an attempt ended, and what follows: done, tried again, or failed. By first cause, from a table."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from moorage.core.decision import Retry, Stop
from moorage.core.explain import clock
from moorage.core.job import DoneWhen, Evidence, Job
from moorage.core.lease import Lease, LeaseState, Outcome
from moorage.core.policy import Policy


class Fault(StrEnum):
    """Whose fault an end was."""

    #: The job's own: counts against its retries.
    JOB = "job"
    #: The machine's, the network's or another's: tried again, and counts for nothing.
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row of the table. What is None or empty matches everything."""

    fault: Fault
    #: A clause for the sentence, for example "ran out of GPU memory".
    words: str
    exit_code: int | None = None
    signal: int | None = None
    #: Text in the last lines of the log.
    text: str = ""

    def matches(self, evidence: Evidence) -> bool:
        """Whether this row explains the end."""
        return (
            (self.exit_code is None or self.exit_code == evidence.exit_code)
            and (self.signal is None or self.signal == evidence.signal)
            and self.text in evidence.tail
        )


#: First match wins: what the log names as the cause comes before what the process died of.
CAUSES: tuple[Cause, ...] = (
    Cause(fault=Fault.JOB, words="ran out of GPU memory", text="CUDA out of memory"),
    Cause(fault=Fault.INFRASTRUCTURE, words="met a failing GPU", text="uncorrectable ECC error"),
    Cause(fault=Fault.INFRASTRUCTURE, words="met a failing GPU", text="fallen off the bus"),
    Cause(fault=Fault.INFRASTRUCTURE, words="lost its NCCL peers", text="NCCL error: remote process exited"),
    Cause(fault=Fault.INFRASTRUCTURE, words="met a full disk", text="No space left on device"),
    Cause(fault=Fault.INFRASTRUCTURE, words="was killed from outside (SIGKILL)", signal=signals.SIGKILL),
    Cause(fault=Fault.INFRASTRUCTURE, words="was killed from outside (SIGKILL)", exit_code=128 + signals.SIGKILL),
    Cause(fault=Fault.INFRASTRUCTURE, words="was ended from outside (SIGTERM)", signal=signals.SIGTERM),
    Cause(fault=Fault.INFRASTRUCTURE, words="was ended from outside (SIGTERM)", exit_code=128 + signals.SIGTERM),
    Cause(fault=Fault.INFRASTRUCTURE, words="was hung up on (SIGHUP)", signal=signals.SIGHUP),
    Cause(fault=Fault.JOB, words="was interrupted (SIGINT)", signal=signals.SIGINT),
    Cause(fault=Fault.JOB, words="crashed (SIGSEGV)", signal=signals.SIGSEGV),
    Cause(fault=Fault.JOB, words="aborted (SIGABRT)", signal=signals.SIGABRT),
    Cause(fault=Fault.JOB, words="may not execute its program", exit_code=126),
    Cause(fault=Fault.JOB, words="found no such program", exit_code=127),
)

#: How much of the last log line a sentence quotes.
QUOTE = 200


def judge(lease: Lease, evidence: Evidence, policy: Policy, now: datetime) -> Retry | Stop:
    """What follows from how the attempt's process (a ray job's: its driver) ended."""
    job = lease.job or Job(entrypoint=("true",))
    if _finished(lease, job, evidence):
        return Stop(lease=lease.id, outcome=Outcome.SUCCEEDED, reason="finished", by=now, result=evidence.marker)
    if lease.state is LeaseState.STOPPING:
        return Stop(lease=lease.id, outcome=lease.outcome or Outcome.STOPPED, reason=lease.reason, by=now)
    fault, words = cause(evidence)
    if fault is Fault.INFRASTRUCTURE:
        return again(lease, words, policy, now)
    return _own_fault(lease, job, words, policy, now)


def _finished(lease: Lease, job: Job, evidence: Evidence) -> bool:
    """Exit 0 is enough where nothing else was agreed; but a job that was told to stop exits 0 unfinished."""
    enough = job.done_when is DoneWhen.EXIT and lease.state is not LeaseState.STOPPING
    return evidence.exit_code == 0 and (enough or evidence.marker is not None)


def cause(evidence: Evidence) -> tuple[Fault, str]:
    """Whose fault, and the sentence with the last line of the log."""
    if evidence.agent_error:
        return Fault.INFRASTRUCTURE, f"could not run: {evidence.agent_error}"
    if evidence.exit_code == 0:
        return Fault.JOB, _quoted("exited 0 without finishing: no completion marker", evidence)
    row = next((row for row in CAUSES if row.matches(evidence)), None)
    if row is not None:
        return row.fault, _quoted(row.words, evidence)
    if evidence.signal is not None:
        return Fault.JOB, _quoted(f"died by signal {evidence.signal}", evidence)
    if evidence.exit_code is None:
        return Fault.INFRASTRUCTURE, _quoted("ended, and its exit code is not known", evidence)
    return Fault.JOB, _quoted(f"exited {evidence.exit_code}", evidence)


def _quoted(words: str, evidence: Evidence) -> str:
    lines = [line.strip() for line in evidence.tail.splitlines() if line.strip()]
    return f"{words}; last line: {lines[-1][:QUOTE]}" if lines else words


def _own_fault(lease: Lease, job: Job, words: str, policy: Policy, now: datetime) -> Retry | Stop:
    if lease.failures >= job.max_retries:
        tries = f" (after {lease.failures} of {job.max_retries} retries)" if job.max_retries else ""
        return Stop(lease=lease.id, outcome=Outcome.FAILED, reason=f"attempt {lease.epoch}{tries} {words}", by=now)
    at = back_off(lease.failures, policy, now)
    reason = f"attempt {lease.epoch} {words}; retry {lease.failures + 1} of {job.max_retries} at {clock(at)}"
    return Retry(lease=lease.id, reason=reason, not_before=at, fault=True)


def again(lease: Lease, words: str, policy: Policy, now: datetime, *, interruption: bool = False) -> Retry | Stop:
    """Another attempt that counts for nothing, unless too many in a row got nowhere."""
    got_nowhere = lease.best_step <= lease.granted_step
    if got_nowhere and lease.fruitless + 1 >= policy.fruitless_attempts:
        reason = f"gave up after {policy.fruitless_attempts} attempts without progress: attempt {lease.epoch} {words}"
        return Stop(lease=lease.id, outcome=Outcome.FAILED, reason=reason, by=now)
    # The first interruption is nobody's pattern: go on at once.
    wait = None if interruption and not lease.fruitless else back_off(lease.fruitless, policy, now)
    reason = f"attempt {lease.epoch} {words}; tried again {f'at {clock(wait)}' if wait else 'at once'}"
    return Retry(lease=lease.id, reason=reason, not_before=wait, interruption=interruption)


def back_off(tries: int, policy: Policy, now: datetime) -> datetime:
    """When to try again after so many tries: doubling from the first wait to the largest."""
    return now + timedelta(seconds=min(policy.retry_first_s * 2.0 ** min(tries, 30), policy.retry_max_s))
