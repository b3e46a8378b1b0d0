"""How often a job may start again: the numbers of `spec.runPolicy`, counted as HyperPod's operator does.

In: one call for each fault, with its moment. Out: a restart of the processes in place, a restart of the whole
job, or the reason why the job fails. Next: `emulator.training_operator`, which does it.

The meaning of the four numbers is that of AWS's guide "Using the training operator to run jobs".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto


class Restart(Enum):
    """What follows a fault."""

    PROCESSES = auto()  # in the same pods; only a pod that has gone is made anew
    JOB = auto()  # all pods are made anew


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """`spec.runPolicy` of a HyperPodPyTorchJob; the defaults are those of AWS's sample."""

    process_restarts: int = 3  # restartPolicy.numRestartBeforeFullJobRestart, within the period
    job_restarts: int = 1  # restartPolicy.maxFullJobRestarts, over the life of the job
    period_s: float = 21_600.0  # restartPolicy.evalPeriodSeconds
    retries: int = 50  # jobMaxRetryCount: process restarts over the life of the job


@dataclass(slots=True)
class Restarts:
    """What one job has used of its budget."""

    budget: RestartBudget
    processes: int = 0  # over the life of the job
    jobs: int = 0
    _recent: list[float] = field(default_factory=list)  # moments, since the last restart of the whole job

    def after_fault(self, moment: float) -> Restart | str:
        """Return what follows a fault at `moment` (seconds, any origin), or the reason why the job fails."""
        self._recent = [m for m in self._recent if moment - m < self.budget.period_s]
        if len(self._recent) < self.budget.process_restarts:
            if self.processes >= self.budget.retries:
                return f"the restart budget is spent: {self.processes} process restarts (jobMaxRetryCount)"
            self._recent.append(moment)
            self.processes += 1
            return Restart.PROCESSES
        if self.jobs >= self.budget.job_restarts:
            used = f"{self.processes} process restarts and {self.jobs} job restarts"
            return f"the restart budget is spent: {used}"
        self._recent = []
        self.jobs += 1
        return Restart.JOB
