"""The proof must fail whenever something went wrong: each test breaks one thing of a good run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from examples.demo.proof import KEPT, LEFT_TO_A_PERSON, Observed, failures, summarize
from training_agent.contract import Alarm, Check, Finding, FindingKind, Independence, Job, Place, ResumePoint

NODE = "i-0123456789abcdef0"
PLACE = Place(3, 1, f"hyperpod-{NODE}", NODE, "GPU-3")
HASHES = {rank: {"rank": rank, "step": 60, "weights_sha256": "w", "moments_sha256": "m"} for rank in range(6)}
OTHER = {rank: {**entry, "weights_sha256": "x"} for rank, entry in HASHES.items()}


def alarm(*ranks: int) -> Alarm:
    findings = tuple(Finding(FindingKind.CULPRIT, r, PLACE, majority=True) for r in ranks)
    return Alarm(
        "demo",
        Job("j", "u"),
        Check.REPLAY,
        30,
        "2026-01-01T00:00:00Z",
        findings,
        (21, 30),
        6,
        3,
        Independence.NODE,
    )


def incident(**changes: Any) -> dict[str, Any]:
    row = {"instance_id": NODE, "decision_row": "C1", "decided_rows": ["C1"], "state": "REPLACED"}
    return {**row, **changes}


GOOD = Observed(
    fault="forward-x1000",
    injected=[{"rank": 3, "struck_step": 23}],
    alarms=[alarm(3)],
    incidents=[incident()],
    replacements=[(NODE, "i-0fedcba9876543210")],
    mails=1,
    resumed_from_step=20,
    final_step=60,
    reference=HASHES,
    resumed=HASHES,
    poisoned=OTHER,
    job_failure=None,
    deep_check="pass",
    exit_codes=[3, 3, 3],
)
QUIET = replace(
    GOOD, fault="none", injected=[], alarms=[], incidents=[], replacements=[], mails=0, poisoned=HASHES
)


def wrong(seen: Observed) -> list[str]:
    return failures(seen, summarize(seen))


def test_a_good_run_is_proven() -> None:
    assert wrong(GOOD) == []


def test_a_run_without_a_fault_is_proven_and_its_alarm_fields_are_null() -> None:
    assert wrong(QUIET) == []
    summary = summarize(QUIET)
    assert summary["named_ranks"] == []
    assert {
        summary[k] for k in ("check", "alarm_step", "suspect_window", "decision_row", "injected_rank")
    } == {None}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alarms": [alarm(2)]}, "ranks \\[2\\] were named"),
        ({"alarms": [alarm(2, 3)]}, "ranks \\[2, 3\\] were named"),
        ({"alarms": []}, "ranks \\[\\] were named"),
        ({"injected": []}, "never struck"),
        ({"resumed": OTHER}, "differ from those"),
        ({"resumed": {}}, "differ from those"),
        ({"poisoned": HASHES}, "proves nothing"),
        ({"replacements": []}, "should have been"),
        ({"replacements": [("i-0fedcba9876543210", None)]}, "should have been"),
        ({"replacements": [(NODE, "x"), (NODE, "y")]}, "should have been"),
        ({"incidents": [incident(state="HANDED_TO_HUMAN")]}, "ended HANDED_TO_HUMAN"),
        ({"incidents": [incident(decision_row="V2", decided_rows=["V2"])]}, "ended REPLACED"),
        ({"incidents": [incident(), incident()]}, "2 incidents"),
        ({"job_failure": "the job did not end"}, "did not end"),
        ({"exit_codes": [1, 1, 1]}, "not with 3"),
    ],
)
def test_whatever_went_wrong_fails_the_proof(change: dict[str, Any], words: str) -> None:
    import re

    found = wrong(replace(GOOD, **change))
    assert any(re.search(words, reason) for reason in found), found


def test_a_job_that_came_back_elsewhere_than_the_agent_chose_fails_the_proof() -> None:
    chosen = replace(alarm(3), resume_from=ResumePoint(20, "step-20"))
    assert wrong(replace(GOOD, alarms=[chosen])) == []
    assert any(
        "the agent chose 20" in r for r in wrong(replace(GOOD, alarms=[chosen], resumed_from_step=None))
    )


def test_any_alarm_without_a_fault_fails_the_proof() -> None:
    assert wrong(replace(QUIET, alarms=[alarm(3)]))
    assert wrong(replace(QUIET, mails=1))


def test_a_replayer_decided_again_as_persistent_must_be_replaced() -> None:
    row = incident(decision_row="V1", decided_rows=["V3", "V1"])
    seen = replace(GOOD, fault="replayer-x1000", incidents=[row], poisoned=HASHES)
    assert wrong(seen) == []
    assert summarize(seen)["poisoned_run_differs"] is None
    assert summarize(seen)["decision_row"] == "V3"
    assert wrong(replace(seen, replacements=[]))


def test_two_gpus_are_told_as_lists() -> None:
    second = "i-0fedcba9876543210"
    seen = replace(
        GOOD,
        fault="two-gpus",
        injected=[{"rank": 1, "struck_step": 23}, {"rank": 3, "struck_step": 24}],
        alarms=[alarm(1, 3)],
        incidents=[incident(), incident(instance_id=second)],
        replacements=[(NODE, "a"), (second, "b")],
    )
    assert wrong(seen) == []
    assert summarize(seen)["replaced_instance"] == [NODE, second]


def test_an_approver_who_keeps_the_node_is_told_that_alone() -> None:
    kept = replace(
        GOOD, incidents=[incident(state=KEPT)], replacements=[], resumed={}, resumed_from_step=None,
        final_step=None, job_failure=LEFT_TO_A_PERSON,
    )  # fmt: skip
    assert failures(kept, summarize(kept)) == [LEFT_TO_A_PERSON]
    stuck = replace(kept, incidents=[incident(state="DEGRADED")])
    assert len(failures(stuck, summarize(stuck))) > 1
