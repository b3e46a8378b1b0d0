"""The restart budget of a HyperPod job: in place first, then the whole job, then the end."""

from __future__ import annotations

from emulator.restart_budget import Restart, RestartBudget, Restarts

IN_PLACE, WHOLE_JOB = Restart.PROCESSES, Restart.JOB
SAMPLE = RestartBudget()  # 3 process restarts within 6 hours, 1 job restart


def test_the_samples_budget_is_seven_restarts() -> None:
    restarts = Restarts(SAMPLE)
    answers = [restarts.after_fault(float(n)) for n in range(8)]
    assert answers[:7] == [IN_PLACE] * 3 + [WHOLE_JOB] + [IN_PLACE] * 3
    assert answers[7] == "the restart budget is spent: 6 process restarts and 1 job restarts"


def test_process_restarts_are_forgotten_after_the_period_and_job_restarts_never() -> None:
    restarts = Restarts(SAMPLE)
    seven_hours = 7 * 3600.0
    assert [restarts.after_fault(n * seven_hours) for n in range(10)] == [IN_PLACE] * 10
    answers = [restarts.after_fault(100 * seven_hours + n) for n in range(4)]
    assert answers == [IN_PLACE] * 3 + [WHOLE_JOB]
    answers = [restarts.after_fault(200 * seven_hours + n) for n in range(4)]
    assert answers[:3] == [IN_PLACE] * 3
    assert isinstance(answers[3], str)


def test_the_count_of_retries_ends_a_job_whose_faults_are_far_apart() -> None:
    restarts = Restarts(RestartBudget(retries=2))
    assert [restarts.after_fault(n * 1e6) for n in range(2)] == [IN_PLACE] * 2
    assert restarts.after_fault(3e6) == "the restart budget is spent: 2 process restarts (jobMaxRetryCount)"
