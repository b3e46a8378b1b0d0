"""Which rows of the quarantine table set an entry of the job's own record free."""

from __future__ import annotations

from pathlib import Path

from training_agent.hold_judge import Judge
from training_agent.placement_files import Judgement
from training_agent.quarantine import add_to_record, entries_of

from .builders import FakeAws, a_finding, a_place, an_alarm, instance, settings_of

KEY = entries_of(an_alarm(a_finding(1)))[0].delivery_key
OLD = {"state": "released", "delivery_key": "of an alarm last month"}


def judged(shared: Path, **rows: dict[str, str]) -> Judgement:
    add_to_record(shared, entries_of(an_alarm(a_finding(1))))
    aws = FakeAws()
    aws.table |= {"job#job-1": {"state": "released", "delivery_key": KEY}, **rows}
    judge = Judge(settings_of(shared, quarantine_table="quarantine"), aws.factory)
    return judge.judge(tuple(a_place(rank) for rank in range(4)))


def test_a_jobs_release_counts_also_where_an_earlier_alarm_left_a_row_of_the_instance(tmp_path: Path) -> None:
    """Software or configuration: nobody is blamed, the job need not wait, whatever happened here before."""
    assert judged(tmp_path, **{f"instance#{instance(0)}": OLD, "gpu#GPU-1": OLD}) == Judgement("go")


def test_a_jobs_release_does_not_outweigh_a_row_that_is_held(tmp_path: Path) -> None:
    assert judged(tmp_path, **{f"instance#{instance(0)}": {"state": "held"}}).word == "hold"
